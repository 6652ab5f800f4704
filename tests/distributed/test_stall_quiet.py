"""What the monitor must not do: report jobs that move, ask the store too often, keep a job from ending."""

from __future__ import annotations

import os
import signal
import time

import pytest

pytest.importorskip("torch")

PROGRAM = """
    import ddp_patches.auto
    import json, os, sys, threading, time
    import rank_program as job

    kind, folder = sys.argv[1], sys.argv[2]
    asked = [0]

    def count_requests():
        from ddp_patches.runtime.client import Client

        for name in ("add", "put", "first"):
            def counting(self, *args, _upstream=getattr(Client, name)):
                asked[0] += 1
                return _upstream(self, *args)
            setattr(Client, name, counting)

    def long_steps():
        for _ in range(3):
            time.sleep(5)
            job.total()

    def uploads():
        # The others are done; rank 0 goes on alone.
        if job.RANK == 0:
            time.sleep(12)

    def is_traced():
        sys.settrace(lambda frame, event, argument: None)
        sys._getframe().f_trace = lambda frame, event, argument: None
        if job.RANK == 1:
            time.sleep(12)
        job.total()
        sys.settrace(None)

    def is_suspended():
        if job.RANK == 1:
            job.wait_for(os.path.join(folder, "release"))
        job.total()

    def leads():
        from ddp_patches.patches.ultralytics import zero_first
        import contextlib
        import torch.distributed as dist

        @contextlib.contextmanager
        def upstream(local_rank):
            if local_rank not in (-1, 0):
                dist.barrier()
            yield
            if local_rank == 0:
                dist.barrier()

        with zero_first.torch_distributed_zero_first(upstream)(job.LOCAL_RANK):
            if job.RANK == 0:
                time.sleep(12)

    def is_healthy():
        job.meet(folder, "begin")
        time.sleep(3)
        before = asked[0]
        began = time.monotonic()
        while time.monotonic() - began < 20:
            time.sleep(0.2)
        job.say(requests=(asked[0] - before) / (time.monotonic() - began))

    def main():
        count_requests()
        job.start()
        job.total()
        {"steps": long_steps, "uploads": uploads, "traced": is_traced, "suspended": is_suspended,
         "leads": leads, "healthy": is_healthy}[kind]()
        job.say(total=job.total() if kind != "uploads" else 6)

    if __name__ == "__main__":
        main()
    """

EXITS = """
    import ddp_patches.auto
    import rank_program as job
    from ddp_patches.runtime.stall import monitor

    monitor._LOOK_SECONDS = 0.001
    monitor._SHORTEST_ASK_SECONDS = monitor._ASK_SECONDS = 0.001
    job.start()
    job.total()
    """


def start(jobs, kind, count=3, **variables):
    folder = jobs.folder(kind)
    arguments = [kind, folder]
    return jobs.start(kind, PROGRAM, count, arguments=arguments, DDP_PATCHES_STALL_AFTER="3s", **variables)


@pytest.mark.parametrize("kinds", [("steps", "uploads"), ("traced", "leads")])
def test_no_report_of_a_job_that_moves(jobs, kinds):
    """Steps longer than stall_after, a long end on rank 0, a rank-0-first block, a trace function."""
    running = {kind: start(jobs, kind) for kind in kinds}
    for kind, job in running.items():
        job.wait()
        assert job.lines("STALL") == [], job
        assert [job.answer(rank, total=6)["total"] for rank in range(3)] == [6] * 3
        if kind == "traced":
            assert job.lines("no report of a stall while a trace function is attached to this rank.")


def test_no_report_of_a_job_that_was_suspended(jobs):
    """Everything stops for longer than stall_after, and goes on: nobody has waited for anybody."""
    job = start(jobs, "suspended", 2)
    deadline = time.monotonic() + 90
    while not job.lines_so_far("is on for 2 of 2 ranks"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    for rank in (0, 1):
        os.kill(job.running[rank].pid, signal.SIGSTOP)
    time.sleep(17)
    (job.folder / "release").write_text("")
    for rank in (0, 1):
        os.kill(job.running[rank].pid, signal.SIGCONT)
    assert [line for line in job.wait().lines("STALL") if "STALL, 1" in line or "STALL, 2" in line] == []


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.matrix)])
def test_a_healthy_job_asks_the_store_less_than_twice_a_second(jobs, count):
    """Per node; the ranks here are one node."""
    job = start(jobs, "healthy", count).wait()
    requests = [
        answer["requests"] for result in job.results for answer in result.answers if "requests" in answer
    ]
    assert len(requests) == count and 0 < sum(requests) < 2, requests


@pytest.mark.parametrize("exits", [6, pytest.param(30, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("skip", ["", "torch.teardown"])
def test_exits_with_a_monitor_that_hardly_rests(jobs, skip, exits):
    """A thread inside a store call while the interpreter ends aborts the process: 8 of 8, tried."""
    variables = {"DDP_PATCHES_SKIP": skip} if skip else {}
    for attempt in range(exits // 3):
        running = [jobs.start("%d-%d" % (attempt, number), EXITS, 2, **variables) for number in range(3)]
        for job in running:
            job.wait()
