"""From what the ranks say of themselves to a sentence: who is missing, where it stands.

Pure: the monitor collects the posts and prints what comes out of here. What each kind means, and what to
try, is in ``advice``.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..records import ranks_phrase
from .post import MOVED_SECONDS, Post
from .standing import (
    BACKWARD,
    COLLECTIVE,
    ELSEWHERE,
    FORWARD,
    GPU,
    LEADER_WAIT,
    LEAVING,
    LOADER,
    LOCK,
    POINT_TO_POINT,
)

# *slow* is only ever reported; *failure* will not end by itself.
SLOW, FAILURE = "slow", "failure"

_DEFAULT = "default"
_STOOD_SECONDS = 2.0  # posts are not taken at the same moment: who has just come may go on at once
_SHOWN = 4  # ranks, or places, in one sentence


@dataclasses.dataclass(frozen=True)
class Finding:
    """``sentence``: who is missing and where, for people; ``kind`` and ``missing`` (ranks), for programs."""

    kind: str
    severity: str  # SLOW or FAILURE
    sentence: str
    missing: Tuple[int, ...] = ()


def find(posts: Mapping[int, Post], silent: Mapping[int, str], without: Sequence[int]) -> Optional[Finding]:
    """The finding, None if nobody waits.

    Args:
        posts: by rank.
        silent: the ranks that have not posted, each with what is known ("is stopped (SIGSTOP)").
        without: those among them that have no ddp_patches.
    """
    everybody = [posts[rank] for rank in sorted(posts)]
    waiting = [post for post in everybody if post.waits() or _is_ahead(post, everybody)]
    others = [post for post in everybody if post not in waiting]
    if set(silent) - set(without):
        return _silent(waiting, silent)
    if any(post.kind == LOCK for post in others):
        return _locked(waiting, others)
    awaited = [post for post in others if _is_awaited(post, waiting)]
    if awaited:
        return _missing(waiting, awaited)
    if without and waiting:
        sentence = "%s without ddp_patches.%s" % (
            _capital(ranks_phrase(without, verb=True)),
            _who_waits(waiting),
        )
        return Finding("unknown", SLOW, sentence, tuple(without))
    if waiting:
        return _all_wait(waiting) if all(post.idle >= _STOOD_SECONDS for post in waiting) else None
    if any(post.kind == LOADER for post in others):
        return _missing([], others)
    return _all_stand(others)


def _is_ahead(post: Post, everybody: Sequence[Post]) -> bool:
    """Whether a rank has handed a collective to its GPU that another one has not, and stands still since.

    Python waits for the GPU in the middle of a line of the user's, which no stack tells.
    """
    if post.kind not in (ELSEWHERE, GPU) or not post.counts_started_work() or post.idle < MOVED_SECONDS:
        return False
    return any(
        count > other.counters.get(name, count)
        for other in everybody
        for name, count in post.counters.items()
    )


def _is_awaited(post: Post, waiting: Sequence[Post]) -> bool:
    """Whether somebody waits in a collective of a group that this rank is in."""
    return any(not other.members or post.rank in other.members for other in waiting)


def _silent(waiting: Sequence[Post], silent: Mapping[int, str]) -> Finding:
    said = ["rank %d %s" % (rank, silent[rank]) for rank in sorted(silent)]
    more = " and %d more" % (len(said) - _SHOWN) if len(said) > _SHOWN else ""
    sentence = "%s%s." % ("; ".join(said[:_SHOWN]), more)
    return Finding("silent", FAILURE, _capital(sentence) + _who_waits(waiting), tuple(sorted(silent)))


def _locked(waiting: Sequence[Post], others: Sequence[Post]) -> Finding:
    held = [post for post in others if post.kind == LOCK]
    working = [post for post in others if post.kind != LOCK and post.moves()]
    ranks = tuple(post.rank for post in held)
    sentence = "%s waiting for a C++ extension to be built: %s.%s" % (
        _capital(ranks_phrase(ranks, verb=True)),
        held[0].where(),
        _who_waits(waiting),
    )
    return Finding("build lock", SLOW if working else FAILURE, sentence, ranks)


def _missing(waiting: Sequence[Post], others: Sequence[Post]) -> Finding:
    named = [post for post in others if post.kind == LOADER] or others
    ranks = tuple(post.rank for post in named)
    sentence = "%s%s %s" % (
        _capital(ranks_phrase(ranks, verb=True)) + " missing." if waiting else "No rank is in a collective.",
        _who_waits(waiting),
        " ".join(_capital("%s is %s." % (post.name(), post.where())) for post in named[:_SHOWN]),
    )
    kind = _why(named)
    is_slow = not waiting or (kind not in ("left", "loader") and any(post.moves() for post in others))
    return Finding(kind, SLOW if is_slow else FAILURE, sentence, ranks)


def _why(named: Sequence[Post]) -> str:
    kinds = {post.kind for post in named}
    if LOADER in kinds:
        return "loader"
    if kinds == {LEAVING}:
        return "left"
    if LEADER_WAIT in kinds:
        return "different places"
    if not any(post.moves() for post in named):
        return "blocked"
    return "rank 0 alone" if {post.rank for post in named} == {0} else "works alone"


def _all_wait(waiting: Sequence[Post]) -> Finding:
    if len({(post.kind, post.what) for post in waiting}) == 1 and _counts_agree(waiting):
        if waiting[0].kind == COLLECTIVE and waiting[0].what.startswith(POINT_TO_POINT):
            return _point_to_point(waiting)
        return Finding("transport", FAILURE, "No rank is missing: all are %s." % waiting[0].standing)
    places = _by_place(waiting)
    parts = [
        "%s %s%s" % (ranks_phrase(ranks, verb=True), where, _count(waiting, ranks)) for where, ranks in places
    ]
    sentence = "The ranks are in different collectives: %s." % "; ".join(parts[:_SHOWN])
    return Finding(_how_they_parted(waiting), FAILURE, sentence, tuple(places[-1][1]))


def _how_they_parted(waiting: Sequence[Post]) -> str:
    kinds = {post.kind for post in waiting}
    if {FORWARD, BACKWARD} <= kinds:
        return "unfinished step"
    if FORWARD in kinds:
        return "forward and collective"
    if any(post.what.startswith(POINT_TO_POINT) for post in waiting):
        return "point to point"
    return "different collectives"


def _point_to_point(waiting: Sequence[Post]) -> Finding:
    sentence = "Each waits for another one: all are %s." % waiting[0].standing
    return Finding("point to point", FAILURE, sentence)


def _all_stand(others: Sequence[Post]) -> Optional[Finding]:
    """Nobody is in a call that waits; on a GPU the collective that hangs may be one of many handed to it."""
    kinds = {post.kind for post in others}
    started = all(post.counts_started_work() and post.counters for post in others)
    if not others or not started or not kinds <= {ELSEWHERE, GPU} or any(post.moves() for post in others):
        return None
    if not _counts_agree(others):
        return None
    sentence = (
        "No rank is missing: all have handed the same collectives to their GPUs and stand still, %s."
        % (others[0].standing)
    )
    return Finding("transport", FAILURE, sentence)


def _counts_agree(posts: Sequence[Post]) -> bool:
    """In every group that all of them are in. A torch or a backend that does not count agrees."""
    common = set(posts[0].counters).intersection(*(post.counters for post in posts))
    return all(len({post.counters[name] for post in posts}) == 1 for name in common)


def _by_place(posts: Sequence[Post]) -> List[Tuple[str, List[int]]]:
    """Ranks by what they do, the largest group first."""
    groups: Dict[str, List[int]] = {}
    for post in posts:
        groups.setdefault(post.standing, []).append(post.rank)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))


def _count(posts: Sequence[Post], ranks: Sequence[int]) -> str:
    counts = {post.counters[_DEFAULT] for post in posts if post.rank in ranks and _DEFAULT in post.counters}
    return " (collective %s)" % ", ".join(map(str, sorted(counts))) if counts else ""


def _who_waits(waiting: Sequence[Post]) -> str:
    if not waiting:
        return ""
    groups = _by_place(waiting)
    parts = [
        "%s %s for it %s" % (ranks_phrase(ranks), "waits" if len(ranks) == 1 else "wait", where)
        for where, ranks in groups[:3]
    ]
    return " " + _capital("; ".join(parts)) + "."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
