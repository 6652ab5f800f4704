"""For each kind of stall the report names rank, file and line, whichever rank it is and whoever started it.

One job goes through several kinds; in each the culprit stays alive and away until the second report, with
the whole table, has been printed.
"""

from __future__ import annotations

import json
import sys
import time

import pytest

pytest.importorskip("torch")

from ddp_patches import propagation
from support import environment, ranks

LIMIT_SECONDS = 90
STANDIN = environment.TESTS / "standins" / "rank_zero_first"
PROGRAM = STANDIN / "stalls.py"

# What the first line of a report has to say, and what the second report says of it; {0}: the culprit.
AWAY = ("Rank {0} is missing.", "stalls.py:", "in until_over", "neither computes nor moves")
LOADER = ("its DataLoader worker ", "stalls.py:", "in __getitem__", "not NCCL's fault")
PARTED = "The ranks are in different collectives:"
KINDS = {
    "sleeps": AWAY,
    "swallows": (*AWAY[:3], "An exception that was caught there"),
    "computes": (*AWAY[:2], "in computes", "is alive and works where the others"),
    "evaluates": (*AWAY[:2], "in evaluates", "is alive and works where the others"),
    "loader-fork": LOADER,
    "loader-spawn": LOADER,
    "loader-forkserver": LOADER,
    "subgroup": ("Rank {0} is missing. Rank {1} waits for it in all_reduce", *AWAY[1:]),
    "receives": ("Rank {0} is missing.", "waits for it in recv", *AWAY[2:]),
    "lock": ("waiting for a C++ extension to be built", "/lock-file, made ", "in lock", "remove the lock"),
    "again": AWAY,
    "collectives": (PARTED, "in broadcast", "in all_reduce", "Compare the places"),
    "forward": (PARTED, "in DDP forward", "in barrier", "model.module"),
    "batches": (PARTED, "in DDP backward", "in barrier", "an unequal number of batches"),
    "killed": ("Rank {0} is gone (", "its process has ended", "in recv", "Exit code -9"),
    "leaves": ("Rank {0} is missing.", "at the end of its program", "in all_reduce", "same number of steps"),
}


class Job:
    """Three ranks, or whatever started them."""

    def __init__(self, jobs, name, kinds, culprit, launcher):
        self.folder, self.kinds, self.culprit = jobs.folder(name), kinds, culprit
        arguments = [",".join(kinds), self.folder, culprit]
        environ = environment.clean(self.folder, STANDIN, DDP_PATCHES_STALL_AFTER="3s")
        propagation.arm(environ)
        processes = jobs.processes(name)
        if launcher == "ranks":
            self.running = ranks.start(processes, PROGRAM, environ, 3, 1, None, arguments).running
            return
        if launcher == "torchrun":
            command = ranks.torchrun_command(3, PROGRAM, *arguments)
        else:
            environ.update(ranks.variables(0, 3, ranks.free_port()))
            command = [sys.executable, STANDIN / "spawning.py", PROGRAM, *arguments]
        self.running = [processes.start(command, environ)]

    def lines(self):
        return [line for process in self.running for line in process.stderr().splitlines()]

    def wait_for(self, *texts):
        """A line that holds all texts."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            for line in self.lines():
                if all(text in line for text in texts):
                    return line
            assert time.monotonic() < deadline, "no line with %s in\n%s" % (texts, "\n".join(self.lines()))
            time.sleep(0.2)

    def check(self, kind):
        told = [text.format(self.culprit, 1 - self.culprit) for text in KINDS[kind]]
        self.wait_for("STALL, ", *told[:3])
        self.wait_for(told[3])
        # The lowest rank that answers prints, and none but it.
        printer = 1 if kind == "leaves" and self.culprit == 0 else 0
        said = [line for line in self.lines() if all(text in line for text in ("STALL, ", *told[:3]))]
        assert said and all("[rank %d, " % printer in line for line in said), said

    def release(self, kind):
        (self.folder / kind).write_text("")
        if kind == "lock":
            (self.folder / "lock-file").unlink()

    def go_through(self):
        (self.folder / "lock-file").write_text("")
        for kind in self.kinds:
            self.check(kind)
            self.release(kind)

    def reports(self):
        files = sorted((self.folder / "state" / "ddp_patches").glob("*/stall-*.json"))
        return [json.loads(file.read_text()) for file in files]


# Each ends with one that cannot end.
CHAINS = [
    ["sleeps", "swallows", "loader-spawn", "collectives"],
    ["computes", "evaluates", "receives", "forward"],
    ["loader-fork", "lock", "again", "batches"],
    ["loader-forkserver", "subgroup", "leaves"],
]
EVERYDAY = [("torchrun", 0, 1)]


def chains():
    """Every kind, with rank 0 and with rank 1 as the culprit, and with the store in each place it may be."""
    for launcher in ("ranks", "torchrun", "spawn"):
        for culprit in (0, 1):
            for number, kinds in enumerate(CHAINS):
                # Upstream cannot make a group again under a launcher that hosts the store.
                possible = [kind for kind in kinds if kind != "again" or launcher == "ranks"]
                marks = () if (launcher, culprit, number) in EVERYDAY else (pytest.mark.matrix,)
                name = "%s-%d-%d" % (launcher, culprit, number)
                yield pytest.param(launcher, culprit, possible, marks=marks, id=name)
    yield pytest.param("ranks", 1, ["killed"], id="killed")


@pytest.mark.parametrize(("launcher", "culprit", "kinds"), list(chains()))
def test_the_missing_rank_is_named_with_file_and_line(jobs, launcher, culprit, kinds):
    """Upstream says after half an hour that a time-out has occurred on the ranks that came."""
    job = Job(jobs, "job", kinds, culprit, launcher)
    job.go_through()
    reports = job.reports()
    assert len(reports) >= len(kinds)
    for report in reports:
        assert report["sentence"] and report["severity"] in ("slow", "failure") and report["next"]
        there = [rank for rank in range(3) if str(rank) not in report["silent"]]
        assert [post["rank"] for post in report["ranks"]] == there
        assert all(post["stack"] for post in report["ranks"])
