"""The same job on two machines: two torchruns of two ranks each, with nothing but a cable between them.

What ranks do not share here they share in all other tests: `/proc`, the loopback interface and the launcher.
"""

from __future__ import annotations

import importlib.metadata
import time

import pytest

pytest.importorskip("torch")

from ddp_patches import propagation
from support import environment, nodes

STANDIN = environment.TESTS / "standins" / "rank_zero_first"
LIMIT_SECONDS = 90
RELEASE = tuple(int(part) for part in importlib.metadata.version("torch").split("+")[0].split(".")[:2])
LAUNCHERS_HANG = RELEASE < (2, 1)  # torch's own ask each other's store for ever when the cable is cut
HERE = object()  # among a program's arguments: the job's folder


class Job:
    """Two nodes at work on a program."""

    def __init__(
        self, jobs, name, program, arguments=(), patched=True, each=({}, {}), own_cable=False, **variables
    ):
        self.nodes = nodes.Nodes()
        self.results = []
        try:
            self.folder = jobs.folder(name)
            environments = []
            for host, own in zip(nodes.HOSTS, each):
                environ = environment.clean(self.folder / host, STANDIN, **{**variables, **own})
                if patched:
                    propagation.arm(environ)
                else:
                    environ["DDP_PATCHES"] = "0"
                environments.append(environ)
            given = [self.folder if argument is HERE else argument for argument in arguments]
            processes = jobs.processes(name)
            self.running = self.nodes.torchrun(processes, program, environments, given, own_cable)
        except BaseException:
            self.nodes.remove()
            raise

    def wait_for(self, *texts, node=0):
        """A line of a node's that holds all texts; None: of any node's."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            lines = self.lines() if node is None else self.running[node].stderr().splitlines()
            for line in lines:
                if all(text in line for text in texts):
                    return line
            assert time.monotonic() < deadline, "no line with %s in\n%s" % (texts, "\n".join(lines))
            time.sleep(0.2)

    def wait_for_failure(self):
        """Until a rank of each node has said that it ends, and both torchruns have ended if they can."""
        for node in range(2):
            self.wait_for("this rank ends, since the job stands still", node=node)
        if not LAUNCHERS_HANG:
            self.wait((1, 1))
        assert not self.lines("terminate called")

    def release(self, name):
        (self.folder / name).write_text("")

    def wait(self, codes=(0, 0), limit=LIMIT_SECONDS):
        """Until both torchruns have ended, with these codes, and with nothing left behind."""
        deadline = time.monotonic() + limit
        self.results = [running.wait(max(0.0, deadline - time.monotonic())) for running in self.running]
        assert tuple(result.returncode for result in self.results) == codes, self
        assert [result.answers[-1] for result in self.results] == [{"left": []}, {"left": []}], self

    def said(self, name):
        """What each rank has said of `name`, by rank."""
        answers = [answer for result in self.results for answer in result.answers]
        return {answer["rank"]: answer[name] for answer in answers if name in answer}

    def lines(self, *texts):
        """The lines of both nodes that hold all texts."""
        lines = [line for running in self.running for line in running.stderr().splitlines()]
        return [line for line in lines if all(text in line for text in texts)]

    def __str__(self):
        return "\n".join(str(result) for result in self.results)

    __repr__ = __str__


@pytest.fixture
def start(jobs):
    """Starts jobs on two nodes, each with a cable of its own."""
    reason = nodes.why_not()
    if reason:
        pytest.skip(reason)
    started = []

    def start_one(*arguments, **keywords):
        started.append(Job(jobs, *arguments, **keywords))
        return started[-1]

    yield start_one
    jobs.end()
    for job in started:
        job.nodes.remove()


def test_the_missing_rank_of_the_other_node_is_named_and_all_end(start):
    """By host, pid, file and line; once it goes on, every rank destroys its group and ends with 0.

    Rank 0 of one node and rank 3 of the other have the same pid: each machine counts its own.
    """
    job = start("job", STANDIN / "stalls.py", ["sleeps", HERE, 3], DDP_PATCHES_STALL_AFTER="3s")
    job.wait_for("is on for 4 of 4 ranks on node-a, node-b")
    first = job.wait_for("STALL, ", "Rank 3 is missing. Ranks 0-2 wait for it in all_reduce")
    job.wait_for("rank 2 (node-b, pid ", "in all_reduce")
    job.release("sleeps")
    job.wait()
    assert "Rank 3 (node-b, pid %d) is at rank_zero_first/stalls.py:" % job.said("pid")[3] in first
    assert " in until_over." in first
    assert job.said("over") == dict.fromkeys(range(4), "sleeps")
    # One rank prints for both nodes, and what torch says of a group that is left is not there.
    assert all("[rank 0, node-a, " in line for line in job.lines("STALL, "))
    assert not job.lines("destroy_process_group() was not called") and not job.lines("terminate called")


MEET = """
    import ddp_patches.auto
    import os, sys, time
    import rank_program as job

    job.start()
    job.total()
    job.wait_for(os.path.join(sys.argv[1], "is-cut"))
    job.say(total=job.total())
    """


@pytest.mark.matrix
def test_all_are_in_the_same_collective_and_the_connection_is_at_fault(start):
    """The store has a cable of its own, as where NCCL uses InfiniBand: all ranks answer, none is missing."""
    job = start("job", MEET, [HERE], own_cable=True, DDP_PATCHES_STALL_AFTER="3s")
    job.wait_for("is on for 4 of 4 ranks on node-a, node-b")
    job.nodes.cut()
    job.release("is-cut")
    job.wait_for(
        "STALL, ", "No rank is missing: all are in all_reduce, called at rank_zero_first/rank_program.py:"
    )
    job.wait_for("the connection between them is at fault")
    job.wait_for("NCCL_P2P_DISABLE=1")
    job.nodes.mend()
    job.wait()
    assert job.said("total") == dict.fromkeys(range(4), 10.0)


BLOCK = """
    import ddp_patches.auto
    import os, sys, time
    import rank_program as job
    from ultralytics.utils.torch_utils import torch_distributed_zero_first
    """

# Arguments: seconds of the group's limit, and of each leader's work; what is run first.
WORK = BLOCK + """
    exec(sys.argv[4] if len(sys.argv) > 4 else "")
    job.start(float(sys.argv[1]))
    barriers = job.Barriers()
    with torch_distributed_zero_first(job.LOCAL_RANK):
        if job.LOCAL_RANK == 0:
            time.sleep(float(sys.argv[2 + job.RANK // 2]))
        done = time.time()
    job.say(total=job.total(), entered=barriers.entered[0], done=done)
    """  # fmt: skip


@pytest.mark.matrix
def test_a_node_waits_for_the_leader_of_the_other_one(start):
    """The faster node's ranks would be in the barrier for longer than the group's limit, as upstream's."""
    on = start("on", WORK, [15, 1, 20], DDP_PATCHES_TIMEOUT="keep")
    off = start("off", WORK, [15, 1, 20], patched=False)
    on.wait()
    assert on.said("total") == dict.fromkeys(range(4), 10.0)
    assert not on.lines("acts as upstream")
    off.wait((1, 1))
    assert off.lines("Timed out waiting 15000ms") and not off.said("total")


PROTOCOL = "from ddp_patches.runtime import records; records.PROTOCOL += job.RANK >= 2"


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("first_line", "other", "reason"),
    [
        ("", {"DDP_PATCHES_TIMEOUT": "1h"}, "rank 0 (node-a) and rank 2 (node-b): timeout 7200.0 and 3600.0"),
        (PROTOCOL, {}, "rank 0 (node-a) has protocol 1, rank 2 (node-b) has 2"),
        ("", {"DDP_PATCHES": "0"}, "ranks 2-3 are without ddp_patches"),
    ],
    ids=["settings", "protocol", "without"],
)  # fmt: skip
def test_nodes_that_differ_run_as_upstream_with_one_warning(start, first_line, other, reason):
    """Every waiter goes into the real barrier while the leaders are at work, on both nodes."""
    job = start("job", WORK, [60, 6, 6, first_line], each=({}, other))
    job.wait()
    assert job.said("total") == dict.fromkeys(range(4), 10.0)
    entered, done = job.said("entered"), job.said("done")
    assert entered[1] < done[0] and entered[3] < done[2]
    warnings = job.lines("ultralytics.zero_first acts as upstream")
    assert len(warnings) == 1 and reason in warnings[0], job


CUT = BLOCK + """
    # A store that is gone is given up after 8 s here, not after 2 minutes.
    from ddp_patches.runtime import client
    client._KEEPALIVE = (4, 2, 2)
    kind, folder = sys.argv[1:]

    def away():
        job.wait_for(os.path.join(folder, "on"), 600)

    job.start(20)
    job.total()
    if kind == "block":
        with torch_distributed_zero_first(job.RANK):
            if job.RANK == 0:
                away()
    elif job.RANK == 3:
        away()
    job.total()
    """  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize(("node", "timeout"), [(1, "2h"), (0, "2h"), (1, "keep")])
def test_a_cable_that_is_cut_while_ranks_wait_costs_the_groups_own_limit(start, node, timeout):
    """Each side says what it knows, and ends as upstream does; a raised limit does not hold it up.

    Nobody is told that the connection is gone. The side with the store misses the ranks of the other one,
    whose ranks miss the store.
    """
    job = start("job", CUT, ["collective", HERE], DDP_PATCHES_STALL_AFTER="4s", DDP_PATCHES_TIMEOUT=timeout)
    job.wait_for("STALL, ", "Rank 3 is missing.")
    job.nodes.cut(node)
    if timeout == "keep":
        job.wait_for("Timed out waiting 20000ms", node=None)
        if not LAUNCHERS_HANG:
            job.wait((1, 1))
        return
    job.wait_for_failure()
    with_store, without = (running.stderr() for running in job.running)
    assert "Rank 2 gives no sign (node-b, pid " in with_store
    assert "No rank moves, and the process group's own limit of 20s has passed" in with_store
    assert "STALL, " in without and "where the others are is not known: the job's store does not" in without
    assert "No other rank can be asked, and the process group's own limit of 20s has passed." in without


@pytest.mark.matrix
def test_a_cable_that_is_cut_in_a_block_leaves_the_plain_barrier(start):
    """The node without the store is not kept for the 24 hours that a living leader has."""
    job = start("job", CUT, ["block", HERE], DDP_PATCHES_STALL_AFTER="4s")
    job.wait_for("is on for 4 of 4 ranks")
    time.sleep(5)  # until the others wait
    job.nodes.cut()
    job.wait_for("go on as upstream, in the plain barrier", node=1)
    job.release("on")
    job.wait_for_failure()
    assert "No other rank can be asked" in job.running[1].stderr()
    assert "Rank 2 gives no sign" in job.running[0].stderr()
