"""Our own code fails, in whatever place: upstream's runs, once, and the job completes.

Without the guards each of these ends a training that upstream would have finished.
"""

from __future__ import annotations

# One group after another in the same two processes; in each, something of ours is broken on one rank.
PROGRAM = """
    import ddp_patches.auto
    import sys, time
    import torch.distributed as dist
    import rank_program as job
    from ultralytics.utils.torch_utils import torch_distributed_zero_first
    from ddp_patches.patches.torch import process_group_timeout, teardown
    from ddp_patches.runtime import client, job as runtime_job, meeting, records, start_line
    from ddp_patches.runtime import waiting, zero_first

    def broken(*arguments, **keywords):
        raise ValueError("a defect")

    PLACES = {
        "the meeting": (meeting.Meeting, "__init__"),
        "the job": (meeting.Meeting, "job"),
        "the record": (records, "build"),
        "the limit": (process_group_timeout._Beginning, "raise_limit"),
        "the beginning": (process_group_timeout._Beginning, "__init__"),
        "the end": (teardown, "_arm"),
        "the agreement": (runtime_job.Job, "_agree"),
        "the opinion": (records, "disagreement"),
        "entering a block": (zero_first.Barriers, "lead"),
        "meeting at a barrier": (zero_first.Barriers, "meet"),
        "the look": (waiting.Wait, "_look"),
        "the verdict": (waiting.Wait, "_decide"),
        "the connection": (client.Client, "connect"),
        "the start line": (start_line, "text"),
    }

    barriers = job.Barriers()

    def train():
        for _ in range(2):
            with torch_distributed_zero_first(job.LOCAL_RANK):
                time.sleep(0.2 if job.LOCAL_RANK == 0 else 0)
                yield "a body has run"

    # A group for each place and for each of the two ranks on which it is broken.
    for place, broken_on in (word.split("@") for word in sys.argv[2:]):
        owner, name = PLACES[place]
        whole = getattr(owner, name)
        if job.RANK == int(broken_on):
            setattr(owner, name, broken)
        del barriers.entered[:]
        began = time.monotonic()
        job.start(20, sys.argv[1], place + broken_on)
        bodies = len(list(train()))
        total = job.total()
        dist.destroy_process_group()
        setattr(owner, name, whole)
        job.say(
            place=place, broken_on=broken_on, total=total, bodies=bodies, barriers=len(barriers.entered),
            seconds=time.monotonic() - began,
        )
    """

PLACES = [
    "the meeting", "the job", "the record", "the limit", "the beginning", "the end", "the agreement",
    "the opinion", "entering a block", "meeting at a barrier", "the look", "the verdict", "the connection",
    "the start line",
]  # fmt: skip


def test_a_defect_of_ours_leaves_the_work_to_upstream(jobs):
    """On rank 0 and on rank 1, in every place through which a training comes."""
    cases = [(place, rank) for place in PLACES for rank in (0, 1)]
    running = []
    for number in range(3):  # side by side
        name, words = "job%d" % number, ["%s@%d" % case for case in cases[number::3]]
        running.append(jobs.start(name, PROGRAM, 2, arguments=[jobs.folder(name), *words]).wait)
    done = [wait() for wait in running]
    for number, (place, broken_on) in enumerate(cases):
        job = done[number % 3]
        for rank in (0, 1):
            answer = job.answer(rank, place=place, broken_on=str(broken_on))
            # Two bodies and two barriers on each rank: upstream's, each run exactly once.
            assert (answer["total"], answer["bodies"], answer["barriers"]) == (3.0, 2, 2), (answer, job)
            assert answer["seconds"] < 15, (answer, job)  # the group's own limit is 20
