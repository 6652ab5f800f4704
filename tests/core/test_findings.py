"""From what the ranks post to the sentence that names the one that is missing: pure decisions."""

from __future__ import annotations

import json

import pytest

from ddp_patches.runtime import findings, monitor, standing


def post(rank, kind, sentence, idle=100.0, cpu=0.0, count=None, worker=""):
    counters = {} if count is None else {"default": count}
    what = sentence.split(",")[0] if kind == standing.COLLECTIVE else ""
    return findings.Post(
        rank, "n1", 4000 + rank, kind, what, sentence, idle, cpu, counters, ["a.py:1 in f"], worker
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
        worker="its DataLoader worker 4711, which computes at custom_3d.py:255 in _rand_another",
    )  # fmt: skip
    found = find(waits(0), loader, waits(2), waits(3))
    assert (found.kind, found.missing) == ("loader", (1,))
    assert found.sentence == (
        "Rank 1 is missing. Ranks 0, 2-3 wait for it in all_reduce, called at focal.py:338 in loss. "
        "Rank 1 (n1, pid 4001) is waiting for its DataLoader at train.py:3 in main: its DataLoader worker "
        "4711, which computes at custom_3d.py:255 in _rand_another."
    )
    assert "longer timeout will not help" in found.meaning


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
    assert found.meaning and found.advice


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

    given = waits(1, count=3)
    text = json.dumps(dataclasses.asdict(given))
    assert monitor.parse(text, 1) == given
    assert monitor.parse(text, 2) is None
    for bad in (
        "",
        "[]",
        "{}",
        "nonsense",
        "[" * 5000,
        json.dumps({**dataclasses.asdict(given), "idle": "x"}),
    ):
        assert monitor.parse(bad, 1) is None
    huge = json.dumps({**dataclasses.asdict(given), "standing": "x" * 10**6, "stack": ["y" * 10**5] * 1000})
    parsed = monitor.parse(huge, 1)
    assert len(parsed.standing) <= 300
    assert len(parsed.stack) <= 40
