"""From what the ranks say of themselves to a sentence: who is missing, where it stands, what that means.

Pure: the monitor collects the posts and prints what comes out of here.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .records import ranks_phrase
from .standing import LEADER_WAIT, LEAVING, LOADER, WAITS

# *slow* is only ever reported; *failure* will not end by itself.
SLOW, FAILURE = "slow", "failure"

_BUSY = 0.2  # of one core: the process computes
_MOVED_SECONDS = 5.0


# What each kind of finding means, and what to try.
_WORDS = {
    "silent": (
        "A process that was killed or stopped, or a machine that is gone: the others wait for it in vain.",
        "Exit code -9 in the launcher's output is mostly the host's memory (loader workers x ranks). A "
        "stopped process goes on with `kill -CONT PID`.",
    ),
    "unknown": (
        "Where a rank without ddp_patches stands is not known; the others wait for it.",
        "Turn ddp_patches on for all ranks (`ddp-patches probe` shows where it gets lost), or look there "
        "with `py-spy dump --pid PID`.",
    ),
    "loader": (
        "The data loading of that rank has delivered no batch: this is not NCCL's fault, and a longer "
        "timeout will not help.",
        "Samples that are drawn again and again (without ground truth, or dropped by the pipeline), a "
        "corrupt file, slow storage. `py-spy dump --pid PID` of the worker shows the line.",
    ),
    "left": (
        "That rank has come to the end of its program while the others are still in theirs: they have more "
        "batches, or it left the loop early.",
        "Give every rank the same number of steps (drop_last, a DistributedSampler, DDP's join()), and leave "
        "a loop on all ranks or on none.",
    ),
    "different places": (
        "Some ranks wait for a leader in a rank-0-first block, others in a collective: they have come to "
        "different places of the program.",
        "Enter rank-0-first blocks on all ranks or on none.",
    ),
    "works alone": (
        "That rank is alive and works where the others are not: a step that only it does (evaluation, an "
        "upload, a scan), or a branch that depends on its data.",
        "A long step of one rank: nothing is wrong as long as it ends before the limit. If all ranks should "
        "be in the same collective: look for a branch around it, such as `if num_pos > 0`.",
    ),
    "blocked": (
        "That rank neither computes nor moves: it waits for something that is no collective (a lock, a file, "
        "a sleep, another process).",
        "Look at the line that is named. An exception that was caught there would look like this, too.",
    ),
    "transport": (
        "All are in the same collective and it does not end: the connection between them is at fault, not "
        "the program.",
        "With NCCL try NCCL_P2P_DISABLE=1, NCCL_IB_DISABLE=1 and NCCL_SOCKET_IFNAME=INTERFACE; "
        "NCCL_DEBUG=INFO shows which path it takes.",
    ),
    "different collectives": (
        "They have taken different ways through the program: a loss term that one rank skips, an unequal "
        "number of batches, an evaluation on some ranks only.",
        "Compare the places: what decides on one rank that it goes there? A longer timeout will not help.",
    ),
}


@dataclasses.dataclass(frozen=True)
class Post:
    """What one rank says of itself during a stall. ``idle``: seconds since anything moved in it."""

    rank: int
    host: str
    pid: int
    kind: str
    what: str
    standing: str  # a sentence: "in all_reduce, called at heads/focal.py:338 in loss"
    idle: float
    cpu: float  # seconds of CPU per second, over the last interval
    counters: Mapping[str, int]  # collectives so far, by group
    stack: Sequence[str] = ()
    worker: str = ""  # of a rank that waits for its loader: "its DataLoader worker 4711, which computes"

    def moves(self) -> bool:
        """Whether this rank's program goes on somehow."""
        return self.cpu > _BUSY or self.idle < _MOVED_SECONDS

    def name(self) -> str:
        """``rank 2 (host, pid 4711)``."""
        return "rank %d (%s, pid %d)" % (self.rank, self.host, self.pid)


@dataclasses.dataclass(frozen=True)
class Finding:
    """``sentence``: who is missing and where, for people; ``kind`` and ``missing`` (ranks), for programs."""

    kind: str
    severity: str  # SLOW or FAILURE
    sentence: str
    missing: Tuple[int, ...] = ()

    @property
    def meaning(self) -> str:
        """What it means."""
        return _WORDS[self.kind][0]

    @property
    def advice(self) -> str:
        """What to try."""
        return _WORDS[self.kind][1]


def find(posts: Mapping[int, Post], silent: Mapping[int, str], without: Sequence[int]) -> Optional[Finding]:
    """The finding, None if nobody waits.

    Args:
        posts: by rank.
        silent: the ranks that have not posted, each with what is known ("is stopped (SIGSTOP)").
        without: those among them that have no ddp_patches.
    """
    waiting = [posts[rank] for rank in sorted(posts) if posts[rank].kind in WAITS]
    others = [posts[rank] for rank in sorted(posts) if posts[rank].kind not in WAITS]
    if set(silent) - set(without):
        return _silent(waiting, silent)
    if others:
        return _missing(waiting, others) if waiting or _waits_for_loader(others) else None
    if without and waiting:
        sentence = "%s without ddp_patches.%s" % (
            _capital(ranks_phrase(without, verb=True)),
            _who_waits(waiting),
        )
        return Finding("unknown", SLOW, sentence, tuple(without))
    return _all_wait(waiting) if waiting else None


def _waits_for_loader(posts: Sequence[Post]) -> bool:
    return any(post.kind == LOADER for post in posts)


def _silent(waiting: Sequence[Post], silent: Mapping[int, str]) -> Finding:
    said = ["rank %d %s" % (rank, silent[rank]) for rank in sorted(silent)]
    sentence = "%s%s." % ("; ".join(said[:4]), " and %d more" % (len(said) - 4) if len(said) > 4 else "")
    return Finding("silent", FAILURE, _capital(sentence) + _who_waits(waiting), tuple(sorted(silent)))


def _missing(waiting: Sequence[Post], others: Sequence[Post]) -> Finding:
    named = [post for post in others if post.kind == LOADER] or others
    ranks = tuple(post.rank for post in named)
    sentence = "%s%s %s" % (
        _capital(ranks_phrase(ranks, verb=True)) + " missing." if waiting else "No rank is in a collective.",
        _who_waits(waiting),
        " ".join(_capital("%s is %s." % (post.name(), _where(post))) for post in named[:4]),
    )
    kind = _why(named)
    is_slow = kind != "left" and any(post.moves() for post in others)
    return Finding(kind, SLOW if is_slow else FAILURE, sentence, ranks)


def _where(post: Post) -> str:
    return "%s: %s" % (post.standing, post.worker) if post.worker else post.standing


def _why(named: Sequence[Post]) -> str:
    kinds = {post.kind for post in named}
    if LOADER in kinds:
        return "loader"
    if kinds == {LEAVING}:
        return "left"
    if LEADER_WAIT in kinds:
        return "different places"
    return "works alone" if any(post.moves() for post in named) else "blocked"


def _all_wait(waiting: Sequence[Post]) -> Finding:
    counts = {post.counters.get("default") for post in waiting}
    if len({(post.kind, post.what) for post in waiting}) == 1 and len(counts) == 1:
        sentence = "No rank is missing: all are %s." % waiting[0].standing
        return Finding("transport", FAILURE, sentence)
    places = _by_place(waiting)
    parts = [
        "%s %s%s" % (ranks_phrase(ranks, verb=True), where, _count(waiting, ranks)) for where, ranks in places
    ]
    sentence = "The ranks are in different collectives: %s." % "; ".join(parts[:4])
    return Finding("different collectives", FAILURE, sentence, tuple(places[-1][1]))


def _by_place(posts: Sequence[Post]) -> List[Tuple[str, List[int]]]:
    """Ranks by what they do, the largest group first."""
    groups: Dict[str, List[int]] = {}
    for post in posts:
        groups.setdefault(post.standing, []).append(post.rank)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))


def _count(posts: Sequence[Post], ranks: Sequence[int]) -> str:
    counts = {post.counters["default"] for post in posts if post.rank in ranks and "default" in post.counters}
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


def table(posts: Mapping[int, Post], silent: Mapping[int, str]) -> List[str]:
    """One line for each rank."""
    lines = []
    for rank in sorted({*posts, *silent}):
        if rank in silent:
            lines.append("rank %d: %s" % (rank, silent[rank]))
            continue
        post = posts[rank]
        count = post.counters.get("default")
        lines.append(
            "rank %d (%s, pid %d): %s; for %ds; %d%% CPU%s"
            % (rank, post.host, post.pid, _where(post), post.idle, round(100 * post.cpu),
               "" if count is None else "; collective %d" % count)
        )  # fmt: skip
    return lines


def as_dict(finding: Finding, posts: Mapping[int, Post]) -> Dict[str, Any]:
    """For the JSON file: the finding and every rank with its stack."""
    return {
        "finding": dataclasses.asdict(finding),
        "ranks": [
            {**dataclasses.asdict(posts[rank]), "counters": dict(posts[rank].counters)}
            for rank in sorted(posts)
        ],
    }
