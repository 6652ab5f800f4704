"""What becomes of ranks that wait for a leader which is slow, stopped, failing or dead.

The stand-in's block is upstream's: without ddp_patches a waiter sits in a barrier with the group's limit.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from support import environment, ranks

RANK_ZERO_FIRST = environment.TESTS / "standins" / "rank_zero_first"

BLOCK = """
    import ddp_patches.auto
    import os, sys, time
    import rank_program as job
    from ultralytics.utils.torch_utils import torch_distributed_zero_first
    """

# Arguments: seconds of the group's limit, and of each leader's work.
WORK = BLOCK + """
    job.meet(os.getcwd(), "imported")  # the limit is that of the group's first connections too
    job.start(float(sys.argv[1]))
    with torch_distributed_zero_first(job.LOCAL_RANK):
        if job.LOCAL_RANK == 0:
            time.sleep(float(sys.argv[2 + job.RANK // 2]))
    job.say(total=job.total())
    """  # fmt: skip

LIMIT_PHRASES = ("Timed out waiting", "timed out", "Connection closed by peer", "Connection reset by peer")


def failed_at_the_limit(job):
    """Whether the ranks ended as they do upstream: one at the barrier's limit, the others with it."""
    return all(result.returncode == 1 for result in job.results) and any(
        phrase in result.stderr for result in job.results for phrase in LIMIT_PHRASES
    )


def test_a_slow_leader_outlives_the_groups_limit(jobs):
    """One node, and two nodes whose leaders need different times: the faster one must not time out either."""
    arguments, keep = ["5", "9"], {"DDP_PATCHES_TIMEOUT": "keep"}
    one = jobs.start("one", WORK, 2, arguments=arguments, **keep)
    two = jobs.start("two", WORK, 4, nodes=2, arguments=["5", "1", "9"], **keep)
    off = jobs.start("off", WORK, 2, arguments=arguments, patched=False)
    one.wait()
    two.wait()
    assert {one.answer(rank)["total"] for rank in range(2)} == {3.0}
    assert {two.answer(rank)["total"] for rank in range(4)} == {10.0}
    assert failed_at_the_limit(off.wait(check=False)), off


def test_a_living_leader_is_given_up_after_the_setting(jobs):
    """All ranks hear of it, the leader too: else it would wait for the others in its barrier."""
    job = jobs.start("job", WORK, 2, arguments=["60", "20"], DDP_PATCHES_ZERO_FIRST_TIMEOUT="4s")
    job.wait(check=False)
    for result in job.results:
        result.check(1)
        assert "LeaderTooSlow: rank 0" in result.stderr, result
        assert "the setting zero_first_timeout; its last sign: " in result.stderr, result


FAIL = BLOCK + """
    job.start(float(sys.argv[1]))
    if job.LOCAL_RANK == 0:
        def scan():
            raise ValueError("label 17 is corrupt \\x1b[2J")
        try:
            with torch_distributed_zero_first(0):
                scan()
        except ValueError:
            job.say(at=time.time())
        time.sleep(float(sys.argv[1]) + 5)
    else:
        try:
            with torch_distributed_zero_first(job.LOCAL_RANK):
                pass
        except Exception as error:
            job.say(at=time.time(), type=type(error).__name__, text=str(error))
    os._exit(0)
    """  # fmt: skip


def test_a_failing_leader_that_stays_alive_ends_the_wait_with_its_reason(jobs):
    """Upstream's waiters sit there until the limit, and then know nothing of the reason."""
    on = jobs.start("on", FAIL, 3, arguments=["12"], DDP_PATCHES_TIMEOUT="keep")
    off = jobs.start("off", FAIL, 3, arguments=["12"], patched=False)
    on.wait()
    off.wait()
    for rank in (1, 2):
        heard, upstream = on.answer(rank), off.answer(rank)
        assert heard["type"] == "LeaderFailed"
        assert "rank 0 (" in heard["text"] and "ValueError: label 17 is corrupt" in heard["text"]
        assert "program.py:" in heard["text"] and "in scan" in heard["text"]
        assert "\x1b" not in heard["text"]  # what a peer sent must not steer the terminal
        assert heard["at"] - on.answer(0)["at"] < 5
        assert "label 17" not in upstream["text"]


STOP = BLOCK + """
    folder = sys.argv[1]
    job.start(15)
    job.meet(folder, "started")
    with torch_distributed_zero_first(job.LOCAL_RANK):
        if job.LOCAL_RANK == 0:
            time.sleep(2)  # until the others wait
            open(os.path.join(folder, "inside.%d" % os.getpid()), "w").close()
            job.wait_for(os.path.join(folder, "continued"))
    job.say(total=job.total())
    """  # fmt: skip


def stop_leader(folder):
    """Stop the leader when it is inside its block; returns its pid."""
    deadline = time.monotonic() + 90
    while not list(folder.glob("inside.*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = int(next(folder.glob("inside.*")).suffix[1:])
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_a_leader_stopped_for_20_seconds_and_continued(jobs):
    """Alone rank 0 hosts the store, which answers nobody while it is stopped; under torchrun the agent does.

    Upstream's waiter times out at the group's limit of 15 s.
    """
    keep = {"DDP_PATCHES_TIMEOUT": "keep"}
    on = jobs.start("on", STOP, 2, arguments=[jobs.folder("on")], **keep)
    off = jobs.start("off", STOP, 2, arguments=[jobs.folder("off")], patched=False)
    folder = jobs.folder("torchrun")
    command = ranks.torchrun_command(2, ranks.script(folder, STOP), folder)
    environ = environment.clean(folder, RANK_ZERO_FIRST, **keep)
    torchrun = jobs.processes("torchrun").start(command, environ)
    stopped = [stop_leader(folder) for folder in (on.folder, off.folder, folder)]
    time.sleep(20)
    for pid, job_folder in zip(stopped, (on.folder, off.folder, folder)):
        (job_folder / "continued").touch()
        os.kill(pid, signal.SIGCONT)
    on.wait()
    assert {on.answer(rank)["total"] for rank in (0, 1)} == {3.0}
    assert [answer["total"] for answer in torchrun.wait(60).check().answers] == [3.0, 3.0]
    assert failed_at_the_limit(off.wait(check=False)), off


KILL = BLOCK + """
    job.start(60)
    with torch_distributed_zero_first(job.LOCAL_RANK):
        if job.LOCAL_RANK == 0:
            time.sleep(2)
        if job.RANK == int(sys.argv[1]):
            os.kill(os.getpid(), 9)
    job.say(total=job.total())
    """  # fmt: skip


def test_a_killed_leader_ends_the_wait(jobs):
    """As the host of the store, and with the store elsewhere. No launcher is there to end the others.

    Upstream's waiters end too, once the kernel has closed the leader's connections; but with an error of
    gloo's about a closed connection, and on NCCL not before the limit.
    """
    host = jobs.start("host", KILL, 3, arguments=["0"])
    other = jobs.start("other", KILL, 4, nodes=2, arguments=["2"])
    for job, killed in ((host, 0), (other, 2)):
        job.wait(60, check=False)
        for rank, result in enumerate(job.results):
            if rank == killed:
                result.check(-signal.SIGKILL)
            else:
                result.check(1)
                assert "LeaderFailed: rank %d (" % killed in result.stderr, result
                assert " died while other ranks waited" in result.stderr, result


LOST = (
    BLOCK
    + """
    folder = sys.argv[1]
    job.start(60)
    barriers = job.Barriers()
    with torch_distributed_zero_first(job.LOCAL_RANK):
        if job.LOCAL_RANK == 0:
            open(os.path.join(folder, "inside"), "w").close()
            time.sleep(5)
            done = time.time()
    job.say(total=job.total(), entered=barriers.entered, done=done if job.LOCAL_RANK == 0 else None)
    """
)

STORE = """
    import sys, time
    from torch.distributed import TCPStore
    store = TCPStore("127.0.0.1", int(sys.argv[1]), None, True, wait_for_workers=False)
    print("ready", flush=True)
    time.sleep(120)
    """


def test_a_store_that_is_lost_leaves_the_plain_barrier(jobs):
    """The store is a process of its own here, as with torchrun, and ends while the leader is at work."""
    port, processes = ranks.free_port(), jobs.processes("store")
    command = [sys.executable, ranks.script(jobs.folder("store"), STORE), port]
    store = processes.start(command, environment.clean(jobs.folder("store")))
    store.wait_for("ready", 60)
    each = {rank: {"MASTER_PORT": str(port)} for rank in range(2)}
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    job = jobs.start("job", LOST, 2, each=each, arguments=[jobs.folder("job")], **agent)
    deadline = time.monotonic() + 60
    while not (job.folder / "inside").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    store.end()
    job.wait(60)
    assert {job.answer(rank)["total"] for rank in (0, 1)} == {3.0}
    # The waiter went into the real barrier while the leader was still at work.
    assert job.answer(1)["entered"][0] < job.answer(0)["done"]
    assert len(job.lines("go on as upstream, in the plain barrier")) == 1
