"""The end of ranks: each group is destroyed once, exit codes stay, no thread of ours is left in the store.

Left alone, upstream's ranks abort now and then when they end (SIGABRT, "terminate called without an active
exception": 2 of 15 runs); that cannot be shown by one run. What can: who destroys how often.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from support import environment, ranks

torch = pytest.importorskip("torch")
RELEASE = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
RANK_ZERO_FIRST = environment.TESTS / "standins" / "rank_zero_first"

# Each rank of one job ends in its own way; counting is switched on before ddp_patches is.
WAYS = """
    import atexit, json, os, signal, sys, threading, time
    import torch.distributed as dist
    import torch.distributed.distributed_c10d as c10d
    import rank_program as job

    original, destroyed = c10d.destroy_process_group, []

    def destroy_process_group(group=None):
        destroyed.append(threading.current_thread() is threading.main_thread())
        return original(group)

    c10d.destroy_process_group = dist.destroy_process_group = destroy_process_group

    def last_words():
        ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("ddp_patches")]
        text = json.dumps({"way": way, "destroyed_by_main_thread": destroyed, "threads": ours})
        os.write(1, (text + "\\n").encode())

    atexit.register(last_words)
    if os.environ["PATCHED"] == "1":
        import ddp_patches
        ddp_patches.enable()

    job.start(60)
    job.total()
    way = sys.argv[1:][job.RANK]
    if way == "destroy":
        dist.destroy_process_group()
    elif way == "atexit":
        atexit.register(lambda: dist.destroy_process_group())
    elif way == "thread":
        def use():
            time.sleep(1)
            os.write(1, json.dumps({"initialized": dist.is_initialized()}).encode() + b"\\n")
        threading.Thread(target=use).start()
    elif way == "raise":
        raise ValueError("the user's")
    elif way == "sys.exit":
        sys.exit(3)
    elif way == "SystemExit":
        raise SystemExit(4)
    elif way == "ctrl-c":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)
    elif way == "handler":
        # As batch systems and logger tools do, before and after us: it is called, and its code is kept.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(6))
        os.kill(os.getpid(), signal.SIGTERM)
    elif way in ("hangup", "terminate"):
        last_words()
        os.kill(os.getpid(), signal.SIGHUP if way == "hangup" else signal.SIGTERM)
        time.sleep(30)
    elif way == "error in atexit":
        atexit.register(lambda: 1 / 0)
    elif way == "groups":
        more = [dist.new_group([job.RANK], use_local_synchronization=True) for _ in range(2)]
        destroyed.clear()
    elif way == "a group destroyed":
        dist.destroy_process_group(dist.new_group([job.RANK], use_local_synchronization=True))
    elif way == "os._exit":
        last_words()
        os._exit(5)
    """

CODES = {
    "return": 0, "destroy": 0, "atexit": 0, "thread": 0, "raise": 1, "sys.exit": 3, "SystemExit": 4,
    "ctrl-c": -signal.SIGINT, "os._exit": 5,
}  # fmt: skip
MORE_CODES = {
    "handler": 6, "hangup": -signal.SIGHUP, "terminate": -signal.SIGTERM, "error in atexit": 0, "groups": 0,
    "a group destroyed": 0,
}  # fmt: skip
# By whom: the user on the main thread, or we on a thread of ours. A user's handler at exit comes after us and
# destroys nothing. A signal that nobody handles, and os._exit, end the process on the spot.
DESTROYED = {
    "destroy": [True], "os._exit": [], "hangup": [], "terminate": [], "a group destroyed": [True, False],
}  # fmt: skip


def check_ends(job, ways):
    job.wait(100, check=False)
    for result, way in zip(job.results, ways):
        result.check({**CODES, **MORE_CODES}[way])
        (said,) = [answer for answer in result.answers if "way" in answer]
        assert said["destroyed_by_main_thread"] == DESTROYED.get(way, [False]), job
        assert DESTROYED.get(way) == [] or said["threads"] == [], result
        if way == "thread":
            assert {"initialized": True} in result.answers, result


def test_every_way_to_end_keeps_its_exit_code_and_destroys_once(jobs):
    """Nine ranks of one job; and a job in which the rank that hosts the store fails."""
    ways = list(CODES)
    all_ways = jobs.start("all", WAYS, len(ways), arguments=ways, PATCHED="1")
    check_ends(all_ways, ways)
    check_ends(jobs.start("host", WAYS, 2, arguments=["raise", "return"], PATCHED="1"), ["raise", "return"])


@pytest.mark.skipif(RELEASE < (2, 1), reason="a group is made without the other ranks")
def test_more_ways_to_end(jobs):
    """Signals with a handler and without, several groups, one that the user destroys himself."""
    ways = ["return", *MORE_CODES]
    check_ends(jobs.start("more", WAYS, len(ways), arguments=ways, PATCHED="1"), ways)


def test_without_us_nobody_destroys(jobs):
    """What the test above would be without the patch."""
    job = jobs.start("off", WAYS, 2, arguments=["return", "sys.exit"], PATCHED="0").wait(check=False)
    assert [result.answers[-1]["destroyed_by_main_thread"] for result in job.results] == [[], []]


# Registered before torch is imported, the last words come after whatever torch does at the end.
LAST_WORDS = """
    import atexit, json, os, sys

    def last_words():
        initialized = sys.modules["torch.distributed"].is_initialized()
        os.write(1, json.dumps({"initialized": initialized}).encode() + b"\\n")

    atexit.register(last_words)
    import ddp_patches.auto
    import rank_program as job

    job.start(60)
    job.total()
    """


@pytest.mark.upstream_fault("torch.teardown")
def test_torch_ends_with_its_groups_as_they_are(jobs):
    started = {
        patched: jobs.start("patched %s" % patched, LAST_WORDS, patched=patched, LEAVE_GROUPS="1")
        for patched in (True, False)
    }
    for patched, job in started.items():
        job.wait(check=patched)  # upstream's may abort
        assert [result.answer["initialized"] for result in job.results] == [not patched] * 2


HOST = """
    import ddp_patches.auto
    import os, signal, sys, threading, time
    import torch.distributed as dist
    import rank_program as job
    from ddp_patches.runtime import job as runtime_job

    def handler(*_):
        job.say(handled=True)
        sys.exit(6)

    job.start(60)
    job.total()
    folder = sys.argv[1]
    if job.RANK == 0:
        open(os.path.join(folder, "host.%d" % os.getpid()), "w").close()
        time.sleep(60)
    else:
        # Ask the store, as a wait for a leader does, and be inside the call when the process ends.
        channel = runtime_job.current().channel
        channel.every(0.0, lambda client: client.add("asked", 0))
        job.wait_for(os.path.join(folder, "stopped"))
        time.sleep(1)
        assert not channel.submit(lambda client: client.add("asked", 0)).wait(0.5)
        began = time.monotonic()
        import atexit
        atexit.register(lambda: job.say(
            seconds=time.monotonic() - began,
            threads=[thread.name for thread in threading.enumerate() if "ddp_patches" in thread.name],
        ))
        if job.RANK == 2:
            signal.signal(signal.SIGTERM, handler)
            os.kill(os.getpid(), signal.SIGTERM)
    """


def test_a_stopped_host_of_the_store_does_not_keep_a_rank_from_ending(jobs):
    """A thread inside a store call while the interpreter ends aborts the process: ours is out by then.

    Rank 1 comes to its end, rank 2 gets a signal: within exit_timeout everything of ours is over, in both.
    """
    job = jobs.start("job", HOST, 3, arguments=[jobs.folder("job")])
    deadline = time.monotonic() + 90
    while not list(job.folder.glob("host.*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = int(next(job.folder.glob("host.*")).suffix[1:])
    os.kill(pid, signal.SIGSTOP)
    (job.folder / "stopped").touch()
    results = [job.running[rank].wait(60).check(code) for rank, code in ((1, 0), (2, 6))]
    assert {"handled": True, "rank": 2} in results[1].answers
    last = [result.answers[-1] for result in results]
    assert [words["threads"] for words in last] == [[], []]
    assert all(words["seconds"] < 10 for words in last), last
    job.running[0].end()


AGAIN = """
    import ddp_patches.auto
    import os, sys, threading, time
    import torch.distributed as dist
    import rank_program as job
    from ultralytics.utils.torch_utils import torch_distributed_zero_first

    for name in ("first", "second", "third"):
        job.start(60, sys.argv[1], name)
        with torch_distributed_zero_first(job.LOCAL_RANK):
            pass
        job.total()
        dist.destroy_process_group()
        # Of all the threads one is left: the one that ends the process.
        job.say(name=name, threads=[t.name for t in threading.enumerate() if "ddp_patches" in t.name])
    """


def test_a_group_that_is_made_again_is_a_new_job(jobs):
    """Each gets its own generation, channel and start line, and leaves none behind."""
    job = jobs.start("job", AGAIN, arguments=[jobs.folder("job")]).wait()
    for rank in (0, 1):
        for name in ("first", "second", "third"):
            assert job.answer(rank, name=name)["threads"] == ["ddp_patches closing"]
    assert len(job.lines("is on for 2 of 2 ranks")) == 3
    assert len({ledger["run"] for ledger in job.ledgers()}) == 3
    assert not job.lines("acts as upstream")


CHILDREN = """
    import ddp_patches.auto
    import os, sys, threading, time
    import torch, torch.distributed as dist
    import torch.multiprocessing as mp

    def rank(number, count, ports, method):
        os.environ.update(
            RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1"
        )
        import rank_program as job
        for port in ports.split(","):  # a group for each
            if dist.is_initialized():
                dist.destroy_process_group()
            os.environ["MASTER_PORT"] = port
            job.start(60)
            assert job.total() == 3
        from ddp_patches.runtime import closing
        def end():
            os.write(1, ('{"method": "%s", "rank": %d, "alive": %s}\\n' % (
                method, number, str(dist.is_initialized()).lower())).encode())
        closing.at_end("the test's", end)

    if __name__ == "__main__":
        spawn, fork, forkserver = sys.argv[1:]
        mp.spawn(rank, args=(2, spawn, "spawn"), nprocs=2)
        for method, port in (("fork", fork), ("forkserver", forkserver)):
            context = mp.get_context(method)
            children = [context.Process(target=rank, args=(number, 2, port, method)) for number in range(2)]
            for child in children:
                child.start()
            for child in children:
                child.join()
            assert [child.exitcode for child in children] == [0, 0]
    """


def test_ranks_that_are_children_of_a_process_end_as_well(jobs):
    """`multiprocessing` ends its children past `atexit`. Ours run before, with the groups still there."""
    folder, processes = jobs.folder("job"), jobs.processes("job")
    path = ranks.script(folder, CHILDREN)
    again = "%d,%d" % (ranks.free_port(), ranks.free_port())
    command = [sys.executable, path, again, ranks.free_port(), ranks.free_port()]
    result = processes.run(command, environment.clean(folder, RANK_ZERO_FIRST), 100).check()
    assert sorted((answer["method"], answer["rank"], answer["alive"]) for answer in result.answers) == [
        (method, rank, True) for method in ("fork", "forkserver", "spawn") for rank in (0, 1)
    ]


UPLOADS = """
    import ddp_patches.auto
    import atexit, threading, time
    import rank_program as job

    def upload(how):
        time.sleep(12)
        job.say(uploaded=how)

    job.start()
    job.total()
    if job.RANK == 0:
        threading.Thread(target=upload, args=("thread",)).start()
    elif job.RANK == 1:
        atexit.register(upload, "atexit")
    """


def test_what_a_program_does_after_its_end_is_completed(jobs):
    """A logger that uploads is no stall, whether the others are gone or not."""
    job = jobs.start("job", UPLOADS, 3, DDP_PATCHES_STALL_AFTER="3s", DDP_PATCHES_EXIT_TIMEOUT="3s").wait()
    assert job.answer(0)["uploaded"] == "thread" and job.answer(1)["uploaded"] == "atexit"
    assert not job.lines("STALL") and not job.lines("did not end within")


PLAIN = """
    import ddp_patches.auto
    import rank_program as job
    job.start()
    job.say(total=job.total())
    """


def test_ranks_under_torchrun_end_without_destroying(jobs):
    """Six ranks in two jobs. Upstream's abort is a matter of chance: see above."""
    running = []
    for name in ("a", "b"):
        folder = jobs.folder(name)
        command = ranks.torchrun_command(3, ranks.script(folder, PLAIN))
        environ = environment.clean(folder, RANK_ZERO_FIRST)
        running.append(jobs.processes(name).start(command, environ, name="torchrun"))
    for launcher in running:
        result = launcher.wait(120).check()
        assert [answer["total"] for answer in result.answers] == [6.0] * 3
        assert not result.leftovers


FORKS = """
    import ddp_patches.auto
    import os, sys, threading, time
    import torch
    import rank_program as job
    from ddp_patches.runtime import job as runtime_job

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            assert runtime_job.current() is None  # a worker is no rank
            return torch.ones(1)

    if __name__ == "__main__":
        job.start(60)
        channel = runtime_job.current().channel
        channel.every(0.0, lambda client: client.add("busy", 0))  # nearly always inside a call
        codes = []
        for code in range(10):
            pid = os.fork()
            if pid == 0:
                pending = channel.submit(lambda client: client.add("child", 1))
                os._exit(code if pending.wait(1) and threading.active_count() == 1 else 99)
            codes.append(os.waitpid(pid, 0)[1] >> 8)
        loader = torch.utils.data.DataLoader(Samples(), batch_size=2, num_workers=2)
        batches = sum(len(batch) for batch in loader)
        counted = channel.call(lambda client: client.add("child", 0), 5.0)
        job.say(codes=codes, batches=batches, counted=counted, total=job.total())
    """


def test_forks_while_the_channel_is_busy(jobs):
    """A lock that the channel's thread holds at that moment would stay locked in the child for ever."""
    job = jobs.start("job", FORKS).wait()
    for rank in (0, 1):
        answer = job.answer(rank)
        assert answer["codes"] == list(range(10))
        assert answer["batches"] == 8 and answer["total"] == 3.0
        assert answer["counted"] == 0  # a child has no business in the store


PENDING = """
    import ddp_patches.auto
    import os, sys, threading, time
    import torch, torch.distributed as dist
    import rank_program as job

    job.start(600)
    if job.RANK == 1:
        pending = dist.all_reduce(torch.ones(1), async_op=True)
        raise ValueError("the user's")
    try:
        job.wait_for(os.path.join(sys.argv[1], "over"))
        job.total()
    except RuntimeError:
        job.say(heard=True)
    os._exit(0)
    """


def test_a_rank_that_fails_in_the_middle_of_a_collective_ends(jobs):
    """Gloo waits for the collective when the process ends; rank 0 lives on and never comes to it.

    Upstream's rank sits there until the limit, with the interpreter's lock held, and ours is two hours.
    """
    job = jobs.start("job", PENDING, 2, arguments=[jobs.folder("job")])
    job.running[1].wait(60).check(1)
    (job.folder / "over").touch()
    assert job.running[0].wait(60).check().answer["heard"]  # at once, as from a rank that is gone


# The last words come after all of ours. Nobody answers whoever connects, and torch tries for seconds.
CONNECTING = """
    import atexit, json, os, socket, threading, time
    atexit.register(lambda: os.write(1, json.dumps({"alive": thread.is_alive()}).encode() + b"\\n"))
    from ddp_patches.runtime import closing
    from ddp_patches.runtime.channel import Channel
    import torch.distributed

    def refuse():
        while True:
            listener.accept()[0].close()

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=refuse, daemon=True).start()
    channel = Channel(listener.getsockname())
    thread = channel._thread
    closing.at_end("the connection", lambda: channel.close(2.0, at_exit=True))
    while channel._client is None:
        time.sleep(0.01)
    """


@pytest.mark.skipif(RELEASE < (2, 1), reason="torch's client expects no answer when it connects")
def test_a_thread_that_torch_connects_in_is_waited_for(jobs):
    """If it comes back while the interpreter ends, C++ ends the process: "terminate called", SIGABRT."""
    result = jobs.start("job", CONNECTING, 1).running[0].wait(60).check()
    assert result.answer == {"alive": False} and "terminate called" not in result.stderr, result
