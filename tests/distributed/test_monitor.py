"""The stall report where a rank, or the host of the store, cannot answer; and a healthy job's threads.

A rank is stopped until the report has been printed; then it goes on, and the job must end as if nothing had
been there. What a rank that answers says is in ``faults/test_stall_kinds``.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

pytest.importorskip("torch")

LIMIT_SECONDS = 90

PROGRAM = """
    import ddp_patches.auto
    import os, sys
    import rank_program as job

    kind, folder = sys.argv[1:3]
    release = os.path.join(folder, "release")

    def main():
        job.start()
        assert job.total() == sum(range(1, job.WORLD_SIZE + 1))
        if job.RANK == 1 and kind == "sleeps":
            job.wait_for(release)
        job.total()
        threads = sorted(thread.name for thread in __import__("threading").enumerate())
        job.say(total=job.total(), threads=threads)

    if __name__ == "__main__":
        main()
    """


def start(jobs, name, kind, count=3, stall_after="3s", **variables):
    folder = jobs.folder(name)
    return jobs.start(
        name, PROGRAM, count, arguments=[kind, folder], DDP_PATCHES_STALL_AFTER=stall_after, **variables
    )


def wait_for(job, text, rank=0):
    """Until a rank has printed ``text``; the line that begins with it or contains it."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        lines = [line for line in job.running[rank].stderr().splitlines() if text in line]
        if lines:
            return lines[0]
        assert time.monotonic() < deadline, "no %r in\n%s" % (text, job.running[rank].stderr())
        time.sleep(0.2)


def end(job):
    (job.folder / "release").write_text("")
    job.wait()
    for rank in range(len(job.running)):
        assert job.answer(rank)["total"] == sum(range(1, len(job.running) + 1))


def test_a_stopped_rank_and_a_stopped_host_of_the_store(jobs):
    """A rank that is stopped cannot answer, and as host of the store it keeps all others from asking.

    Without torchrun rank 0 hosts the store: then each rank prints its own half.
    """
    member, host = (
        start(jobs, "member", "sleeps", stall_after="4s"),
        start(jobs, "host", "sleeps", stall_after="4s"),
    )
    for job, stopped in ((member, 1), (host, 0)):
        wait_for(job, "is on for 3 of 3 ranks")
        os.kill(job.running[stopped].pid, signal.SIGSTOP)
    try:
        line = wait_for(member, "STALL, ")
        assert "Rank 1 is stopped (" in line
        assert "`kill -CONT %d` lets it go on" % member.running[1].pid in line
        line = wait_for(host, "This rank is in all_reduce, called at ", rank=2)
        assert "the job's store does not answer" in line
    finally:
        for job, stopped in ((member, 1), (host, 0)):
            os.kill(job.running[stopped].pid, signal.SIGCONT)
    end(member)
    end(host)


def test_a_healthy_job_says_nothing_and_has_one_thread_more(jobs):
    """Also one in which the setting turns the monitor off."""
    on, off = start(jobs, "on", "nothing"), start(jobs, "off", "nothing", stall_after="off")
    for job, expected in ((on, 1), (off, 0)):
        end(job)
        assert job.lines("STALL") == []
        for rank in range(3):
            threads = job.answer(rank)["threads"]
            assert threads.count("ddp_patches monitor") == expected
