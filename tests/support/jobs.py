"""Several jobs of one test run side by side: most of their time is waiting."""

from __future__ import annotations

import json

import pytest

from support import environment, ranks
from support.processes import Processes

STANDIN = environment.TESTS / "standins" / "rank_zero_first"


class Job:
    """The ranks of one job and what they printed."""

    def __init__(self, running, folder):
        self.running = running
        self.folder = folder
        self.results = []

    def wait(self, limit=120, check=True):
        """Wait for all ranks; unless told otherwise every one must end with 0."""
        self.results = self.running.wait(limit)
        if check:
            assert [result.returncode for result in self.results] == [0] * len(self.results), self
        return self

    def answer(self, rank, **wanted):
        """The one answer of a rank that holds `wanted`."""
        fitting = [
            answer
            for answer in self.results[rank].answers
            if all(answer.get(name) == value for name, value in wanted.items())
        ]
        assert len(fitting) == 1, "expected one answer %s of rank %d from\n%s" % (wanted, rank, self)
        return fitting[0]

    def lines(self, text):
        """Our lines of all ranks that contain `text`."""
        errors = [line for result in self.results for line in result.stderr.splitlines()]
        return [line for line in errors if text in line and "ddp_patches" in line]

    def lines_so_far(self, text):
        """Lines that contain `text`, of ranks that may still run."""
        return [line for running in self.running for line in running.stderr().splitlines() if text in line]

    def ledgers(self):
        """The ledger files of all runs that the job has made, oldest first."""
        files = sorted((self.folder / "state" / "ddp_patches").glob("*/ledger.json"))
        return [json.loads(file.read_text()) for file in files]

    def __str__(self):
        return "\n".join(str(result) for result in self.results)

    __repr__ = __str__


class Jobs:
    """Starts jobs, each in a folder of its own."""

    def __init__(self, folder):
        self._folder = folder
        self._processes = []

    def folder(self, name):
        path = self._folder / name
        path.mkdir(exist_ok=True)
        return path

    def processes(self, name):
        """What starts the processes of a job of that name."""
        processes = Processes(self.folder(name))
        self._processes.append(processes)
        return processes

    def start(self, name, program, count=2, nodes=1, each=None, arguments=(), patched=True, **variables):
        """Start `count` ranks of `program`, all of them without ddp_patches unless `patched`."""
        folder = self.folder(name)
        if not patched:
            variables["DDP_PATCHES"] = "0"
        environ = environment.clean(folder, STANDIN, **variables)
        running = ranks.start(self.processes(name), program, environ, count, nodes, each, arguments)
        return Job(running, folder)

    def end(self):
        for processes in self._processes:
            processes.end()


@pytest.fixture
def jobs(tmp_path):
    """Ended with the test."""
    starter = Jobs(tmp_path)
    yield starter
    starter.end()
