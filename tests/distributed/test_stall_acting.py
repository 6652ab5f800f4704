"""What follows from a stall report beside the report: an end to the job, a command, a callback."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

PROGRAM = """
    import ddp_patches.auto
    import json, os, sys, time
    import ddp_patches
    import rank_program as job

    kind, seconds, limit, folder = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]

    @ddp_patches.on_report
    def keep(report):
        with open(os.path.join(folder, "callback%d" % job.RANK), "w") as file:
            json.dump(report, file)

    @ddp_patches.on_report
    def fail(report):
        raise RuntimeError("on purpose")

    def away():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(1000) if kind == "sleeps" else sum(range(10000))

    def main():
        job.start(seconds=limit)
        job.total()
        if job.RANK == 1:
            away()
        job.say(total=job.total())

    if __name__ == "__main__":
        main()
    """


def start(jobs, name, kind, seconds, limit=600, **variables):
    folder = jobs.folder(name)
    arguments = [kind, seconds, limit, folder]
    return jobs.start(name, PROGRAM, 3, arguments=arguments, DDP_PATCHES_STALL_AFTER="3s", **variables)


def test_on_stall_abort_ends_every_rank_with_code_1(jobs):
    job = start(jobs, "job", "sleeps", 1000, DDP_PATCHES_ON_STALL="abort", DDP_PATCHES_ABORT_AFTER="3s").wait(
        check=False
    )
    assert [result.returncode for result in job.results] == [1, 1, 1], job
    assert len(job.lines("this rank ends, since the job stands still. Rank 1 is missing.")) == 3
    assert job.lines("setting on_stall=abort, with abort_after=3s")


def test_a_raised_limit_protects_ranks_that_move_and_no_others(jobs):
    """Upstream ends both jobs after 15 s; with a limit of two hours a true hang would last two hours."""
    still, moving = start(jobs, "still", "sleeps", 1000, 15), start(jobs, "moving", "computes", 25, 15)
    still.wait(check=False)
    assert [result.returncode for result in still.results] == [1, 1, 1], still
    assert still.lines("no rank moves, and the process group's own limit of 15s has passed".capitalize())
    moving.wait()
    assert [moving.answer(rank)["total"] for rank in range(3)] == [6.0] * 3
    assert moving.lines("Rank 1 is missing."), "reported, but not ended"
    assert moving.lines("ends, since") == []


def test_a_command_and_callbacks_get_the_report(jobs):
    folder = jobs.folder("job")
    command = "sh -c 'cat > %s; exit 3'" % (folder / "command")
    job = start(jobs, "job", "computes", 12, DDP_PATCHES_ON_REPORT=command).wait()
    for name in ("callback0", "command"):
        report = json.loads((folder / name).read_text())
        assert report["kind"] == "works alone" and report["missing"] == [1]
        assert report["text"].startswith("STALL, ") and len(report["ranks"]) == 3
    assert not (folder / "callback1").exists(), "the rank that prints tells them"
    assert job.lines("raised RuntimeError('on purpose')") and job.lines("ended with exit code 3")


@pytest.mark.matrix
def test_a_command_that_does_not_end_or_does_not_exist(jobs):
    commands = {"long": "sleep 1000", "none": "/no/such"}
    running = {n: start(jobs, n, "computes", 20, DDP_PATCHES_ON_REPORT=commands[n]) for n in commands}
    assert running["long"].wait().lines("sleep 1000 did not end within 10s and was ended")
    assert running["none"].wait().lines("/no/such cannot be started")
