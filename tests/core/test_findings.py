"""From what the ranks post to the sentence that names the one that is missing: pure decisions."""

from __future__ import annotations

import json

import pytest

from ddp_patches.runtime.stall import advice, findings, standing
from ddp_patches.runtime.stall.post import Post, parse


def post(rank, kind, sentence, idle=100.0, cpu=0.0, count=None, detail="", **more):
    counters = {} if count is None else {"default": count}
    what = sentence.split(",")[0].partition(" ")[2] if kind == standing.COLLECTIVE else ""
    return Post(
        rank, "n1", 4000 + rank, kind, what, sentence, idle, cpu, counters, ["a.py:1 in f"], detail, **more
    )


def waits(rank, name="all_reduce", **more):
    return post(rank, standing.COLLECTIVE, "in %s, called at focal.py:338 in loss" % name, **more)


def elsewhere(rank, **more):
    return post(rank, standing.ELSEWHERE, "at data.py:9 in scan", **more)


def find(*posts, silent=(), without=()):
    return findings.find({each.rank: each for each in posts}, dict(silent), list(without))


def test_streampetrs_rank_1():
    """The report that cost days: three ranks time out in reduce_mean, and the fourth re-draws samples."""
    loader = post(
        1, standing.LOADER, "waiting for its DataLoader at train.py:3 in main",
        detail="its DataLoader worker 4711, which computes at custom_3d.py:255 in _rand_another",
    )  # fmt: skip
    found = find(waits(0), loader, waits(2), waits(3))
    assert (found.kind, found.missing) == ("loader", (1,))
    assert found.sentence == (
        "Rank 1 is missing. Ranks 0, 2-3 wait for it in all_reduce, called at focal.py:338 in loss. "
        "Rank 1 (n1, pid 4001) is waiting for its DataLoader at train.py:3 in main: its DataLoader worker "
        "4711, which computes at custom_3d.py:255 in _rand_another."
    )
    assert "longer timeout will not help" in advice.meaning(found.kind)


@pytest.mark.parametrize(
    ("posts", "kind", "severity"),
    [
        ([waits(0), elsewhere(1, cpu=1.0)], "works alone", findings.SLOW),
        ([waits(0), elsewhere(1, idle=1.0)], "works alone", findings.SLOW),
        ([waits(0), elsewhere(1)], "blocked", findings.FAILURE),
        (
            [waits(0), post(1, standing.LEAVING, "at the end of its program", cpu=1.0)],
            "left",
            findings.FAILURE,
        ),
        ([waits(0), post(1, standing.LEADER_WAIT, "waiting")], "different places", findings.FAILURE),
        ([waits(0, count=7), waits(1, count=7)], "transport", findings.FAILURE),
        ([waits(0, count=7), waits(1, count=9)], "different collectives", findings.FAILURE),
        ([waits(0, count=7), waits(1, "barrier", count=7)], "different collectives", findings.FAILURE),
        # gloo of a torch that does not count: the stacks alone decide
        ([waits(0), waits(1)], "transport", findings.FAILURE),
    ],
)
def test_the_kinds(posts, kind, severity):
    found = find(*posts)
    assert (found.kind, found.severity) == (kind, severity)
    assert advice.meaning(found.kind) and advice.what_to_try(found.kind)


def test_nobody_waits():
    """A scan on all ranks, or a leader that works while the others wait in a rank-0-first block."""
    assert find(elsewhere(0), elsewhere(1)) is None
    assert find(elsewhere(0, cpu=1.0), post(1, standing.LEADER_WAIT, "waiting")) is None


def test_numbers_stand_side_by_side():
    found = find(waits(0, count=7), waits(1, count=9), waits(2, count=9))
    assert "rank 0 is in all_reduce" in found.sentence or "ranks 0-2 are in all_reduce" in found.sentence
    assert "7" in found.sentence and "9" in found.sentence


def test_silent_ranks_and_ranks_without_us():
    found = find(waits(0), silent={1: "is gone (n1, pid 5): its process has ended"})
    assert found.sentence.startswith(
        "Rank 1 is gone (n1, pid 5): its process has ended. Rank 0 waits for it in"
    )
    found = find(waits(0), silent={1: "is without ddp_patches"}, without=[1])
    assert (found.kind, found.severity, found.missing) == ("unknown", findings.SLOW, (1,))


def test_a_thousand_ranks_stay_readable():
    found = find(*[waits(rank) for rank in range(999)], elsewhere(999))
    assert "Ranks 0-998 wait for it" in found.sentence
    found = find(*[elsewhere(rank) for rank in range(1, 1000)], waits(0))
    assert len(found.sentence) < 600


def test_a_post_survives_the_store_and_a_bad_one_is_refused():
    """What a peer sends is checked: another rank's name, junk, and huge values."""
    import dataclasses

    given = waits(1, count=3, members=[0, 1])
    text = json.dumps(dataclasses.asdict(given))
    assert parse(text, 1) == given
    assert parse(text, 2) is None
    for bad in (
        "",
        "[]",
        "{}",
        "nonsense",
        "[" * 5000,
        json.dumps({**dataclasses.asdict(given), "idle": "x"}),
    ):
        assert parse(bad, 1) is None
    huge = json.dumps({**dataclasses.asdict(given), "standing": "x" * 10**6, "stack": ["y" * 10**5] * 1000})
    parsed = parse(huge, 1)
    assert len(parsed.standing) <= 300
    assert len(parsed.stack) <= 40


# ---- on NCCL, which does not exist here: posts as its ranks would make them


def gpu(rank, kind=standing.ELSEWHERE, count=7, **more):
    """A rank that stands in the middle of a line, which may be a wait for the GPU: its CPU spins."""
    return post(rank, kind, "at train.py:40 in main", count=count, backend="nccl", **{"cpu": 1.0, **more})


def test_who_has_handed_more_to_its_gpu_waits():
    """`loss.item()` shows no collective on the stack, and the counters count what has been started."""
    loader = post(1, standing.LOADER, "waiting for its DataLoader", count=6, backend="nccl")
    found = find(gpu(0), loader, gpu(2))
    assert (found.kind, found.missing) == ("loader", (1,))
    assert "Ranks 0, 2 wait for it at train.py:40 in main." in found.sentence
    found = find(gpu(0), gpu(1, count=6, cpu=0.0), gpu(2))
    assert (found.kind, found.missing, found.severity) == ("blocked", (1,), findings.FAILURE)


def test_a_rank_that_computes_is_told_from_one_that_spins():
    assert find(gpu(0), gpu(1), gpu(2)) is None, "all compute, for all that can be told"
    found = find(*[gpu(rank, cpu=0.0) for rank in range(3)])
    assert found.kind == "transport" and "handed the same collectives" in found.sentence
    assert find(*[gpu(rank, cpu=0.0, idle=1.0) for rank in range(3)]) is None
    # Over gloo a rank that computes in DDP's backward does not wait; over NCCL its CPU says nothing.
    backward = {"kind": standing.BACKWARD, "sentence": "in DDP backward", "cpu": 1.0, "count": 7}
    assert find(*[post(rank, backend="gloo", **backward) for rank in range(2)]) is None
    assert find(*[post(rank, backend="nccl", **backward) for rank in range(2)]).kind == "transport"


def test_a_rank_outside_of_the_group_is_not_missing():
    pair = {"members": [0, 1], "count": 7}
    found = find(waits(0, **pair), elsewhere(1, count=7), elsewhere(2, count=7))
    assert found.missing == (1,)


@pytest.mark.parametrize(
    ("posts", "kind"),
    [
        ([post(0, standing.FORWARD, "in DDP forward"), post(1, standing.BACKWARD, "in DDP backward")],
         "unfinished step"),
        ([post(0, standing.FORWARD, "in DDP forward"), waits(1, "barrier")], "forward and collective"),
        ([waits(0, "recv"), waits(1, "recv")], "point to point"),
        ([waits(0, "recv"), waits(1, "barrier")], "point to point"),
        ([waits(1), elsewhere(0, cpu=1.0)], "rank 0 alone"),
        ([waits(0), post(1, standing.LOCK, "waiting for the lock", detail="the lock /x, made 3h ago")],
         "build lock"),
    ],
)  # fmt: skip
def test_more_kinds(posts, kind):
    found = find(*posts)
    assert found.kind == kind
    assert advice.meaning(found.kind) and advice.what_to_try(found.kind)


def test_all_wait_but_one_has_only_just_come():
    assert find(waits(0, count=7), waits(1, count=7, idle=0.5)) is None


# ---- when it ends


def end(posts, **limits):
    from ddp_patches.runtime.stall import acting

    by_rank = {each.rank: each for each in posts}
    given = {"own": None, "stall_after": 180.0, "abort_after": None, **limits}
    return acting.end(findings.find(by_rank, {}, []), by_rank, acting.Limits(**given))


def test_a_job_is_ended_only_if_nothing_moves():
    still, slow = [waits(0, idle=500.0), elsewhere(1, idle=400.0)], [waits(0), elsewhere(1, cpu=1.0)]
    assert end(still) is None, "on_stall=report, and the limit is the caller's own"
    assert end(slow, abort_after=1.0, own=1.0) is None
    assert end([waits(0), elsewhere(1, cpu=0.1)], own=1.0) is None, "an upload, say"
    assert end(still, abort_after=1800.0).seconds == 180 + 1800 - 500
    assert end(still, own=1800.0).seconds == 1800 - 400, "of the one that has stood for the shortest time"
    both = end(still, own=600.0, abort_after=1800.0)
    assert both.seconds == 200 and "own limit of 10m has passed" in both.reason


def test_a_rank_that_can_ask_nobody_ends_as_it_would_have_without_us():
    from ddp_patches.runtime.stall import acting

    assert acting.end_alone(5000.0, None) is None, "the limit is the caller's own, and ends it by itself"
    assert acting.end_alone(200.0, 1800.0).seconds == 1600
    assert acting.end_alone(1900.0, 1800.0).seconds == -100
    assert "own limit of 30m has passed." in acting.end_alone(1900.0, 1800.0).sentence()
