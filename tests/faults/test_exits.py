"""Jobs that end as most do: the script is over, and nobody has destroyed the group.

Without ddp_patches about one in eight of these aborts on torch 2.14 ("terminate called without an active
exception"). That is a matter of chance, hence the number of jobs.
"""

from __future__ import annotations

import concurrent.futures
import re

import pytest

pytest.importorskip("torch")

from ddp_patches import propagation
from support import environment, ranks

STANDIN = environment.TESTS / "standins" / "rank_zero_first"
AT_A_TIME = 2
LIMIT_SECONDS = 120
BATCHES = enumerate((7, 7, 7, 7))

STEPS = """
    import sys
    import rank_program as job
    import torch

    def main():
        job.start()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        for step in range(2 if job.RANK == int(sys.argv[1]) else 3):
            model(torch.ones(1, 2)).sum().backward()
        job.say(steps=step + 1)

    if __name__ == "__main__":
        main()
    """


def launch(jobs, name, leaver):
    """Two ranks under torchrun, one of which leaves a step earlier; -1: none."""
    folder, processes = jobs.folder(name), jobs.processes(name)
    environ = environment.clean(folder, STANDIN)
    propagation.arm(environ)
    command = ranks.torchrun_command(2, ranks.script(folder, STEPS), leaver)
    return processes.start(command, environ, name="torchrun").wait(LIMIT_SECONDS)


MORE = [pytest.param(count, id="%d more" % number, marks=pytest.mark.matrix) for number, count in BATCHES]


@pytest.mark.parametrize("count", [2, *MORE])
def test_three_steps_and_the_end_of_the_script(jobs, count):
    """Thirty jobs in all."""
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        results = list(pool.map(lambda number: launch(jobs, "job%d" % number, -1), range(count)))
    for result in results:
        result.check()
        assert [answer["steps"] for answer in result.answers] == [3, 3] and not result.leftovers


def test_a_rank_that_leaves_two_steps_into_the_loop(jobs):
    """The other one does not wait for it, and says why it ends."""
    result = launch(jobs, "job", 1).check(1)
    assert re.search(r"Rank 1 \(.*\) has come to the end of its program\.", result.stderr), result
    assert not result.leftovers
