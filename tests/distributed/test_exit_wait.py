"""Without torchrun the job's store ends with rank 0, which has to stay for whoever still works."""

from __future__ import annotations

import signal
import sys
import textwrap
import time

import pytest

pytest.importorskip("torch")

from ddp_patches import propagation
from support import environment, ranks

STANDIN = environment.TESTS / "standins" / "rank_zero_first"

# Rank 0's program ends at once. Rank 1 works on, and needs the store in the end.
JOB = """
    import os, sys, time
    import rank_program as job
    import torch.distributed as dist
    import torch.distributed.distributed_c10d as c10d

    def main():
        job.start(60)
        job.total()
        how, seconds = sys.argv[1], float(sys.argv[2])
        if job.RANK == 1:
            os.write(1, b'{"pid": %d}\\n' % os.getpid())
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if how == "works":
                    time.sleep(0.1)
                    sum(range(1000))
                else:
                    time.sleep(until - time.monotonic())
            store = c10d._get_default_store()
            store.set("needed", "yes")
            job.say(needed=store.get("needed").decode())

    if __name__ == "__main__":
        main()
    """


def start(jobs, name, *arguments, patched=True, **settings):
    settings = {"DDP_PATCHES_" + field: value for field, value in settings.items()}
    program = "import ddp_patches.auto\n" + textwrap.dedent(JOB)
    return jobs.start(name, program, 2, arguments=arguments, patched=patched, **settings)


def test_the_host_of_the_store_stays_for_a_rank_that_works(jobs):
    """Upstream's is gone before: whoever then asks the store gets a broken connection."""
    with_us = start(jobs, "on", "works", 8)
    without = start(jobs, "off", "works", 8, patched=False)
    with_us.wait()
    assert with_us.answer(1, needed="yes")
    without.running[0].wait(100).check()
    result = without.running[1].wait(100)
    assert result.returncode and "needed" not in result.stdout


def test_ranks_of_mp_spawn(jobs):
    """Rank 0 is a child there, which ends past `atexit`; it hosts the store all the same."""
    folder = jobs.folder("job")
    environ = environment.clean(folder, STANDIN, **ranks.variables(0, 2, ranks.free_port()))
    propagation.arm(environ)
    command = [sys.executable, STANDIN / "spawning.py", ranks.script(folder, JOB), "works", 6]
    result = jobs.processes("job").run(command, environ, 100).check()
    assert [answer["needed"] for answer in result.answers if "needed" in answer] == ["yes"], result


def test_the_host_of_the_store_does_not_wait_longer_than_it_has_to(jobs):
    """For exit_wait; not for a rank that stands still; not where it is switched off."""
    off = start(jobs, "off", "works", 60, EXIT_WAIT="off")
    limited = start(jobs, "limited", "works", 60, EXIT_WAIT="10s")
    still = start(jobs, "still", "sleeps", 60, STALL_AFTER="6s")
    off.running[0].wait(50).check()
    assert limited.running[0].popen.poll() is None
    assert not off.lines_so_far("hosts the job's store")
    for job, said in ((limited, "ends after 10s (setting exit_wait)"), (still, "has not moved for ")):
        job.running[0].wait(50).check()
        (line,) = job.lines_so_far("hosts the job's store")
        assert said in line and "rank 1 (" in line and "program.py:" in line


@pytest.mark.parametrize("end", ["the other rank is killed", "Ctrl-C"])
def test_the_host_of_the_store_leaves_when_it_is_told_to(jobs, end):
    """With the last of the others, whatever ended it; and within exit_timeout after a signal."""
    job = start(jobs, "job", "works", 60)
    job.running[1].wait_for('"pid"', 60)
    time.sleep(5)
    assert job.running[0].popen.poll() is None
    began = time.monotonic()
    if end == "Ctrl-C":
        job.running[0].send(signal.SIGINT)
    else:
        job.running[1].send(signal.SIGKILL)
    result = job.running[0].wait(30)
    assert time.monotonic() - began < 10 and not result.timed_out, result
    assert end == "Ctrl-C" or result.returncode == 0, result
