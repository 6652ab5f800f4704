"""What one rank says of itself during a stall, as it goes through the job's store."""

from __future__ import annotations

import dataclasses
import json
from typing import Mapping, Optional, Sequence

from . import groups
from .standing import ELSEWHERE, GPU, LEAVING, WAITS

BUSY = 0.2  # of one core: the process computes
_USED = 0.05  # of one core: it does something
MOVED_SECONDS = 5.0  # the posts of a round are made seconds apart
LONGEST_STACK = 40  # frames
_LONGEST_SENTENCE, _LONGEST_LINE = 300, 400  # characters
_MOST_GROUPS, _MOST_RANKS = 100, 4096


@dataclasses.dataclass(frozen=True)
class Post:
    """Where a rank stands. ``idle``: seconds since anything moved in it; ``cpu``: seconds per second."""

    rank: int
    host: str
    pid: int
    kind: str
    what: str
    standing: str  # a sentence: "in all_reduce, called at heads/focal.py:338 in loss"
    idle: float
    cpu: float  # of the process and, where it is elsewhere, of the processes it has started
    counters: Mapping[str, int]  # collectives so far, by group
    stack: Sequence[str] = ()
    detail: str = ""  # "its DataLoader worker 4711, which computes"; "the lock PATH, 3h old"
    backend: str = ""
    members: Sequence[int] = ()  # of the group whose collective it is in; empty: all ranks
    neighbours: Mapping[int, str] = dataclasses.field(default_factory=dict)  # of its node: gone or stopped

    def computes(self) -> bool:
        """Whether it uses the CPU for work. With NCCL a rank that waits for the GPU does so, too."""
        may_spin = self.kind in WAITS or self.kind == GPU
        return self.cpu > BUSY and not (may_spin and self.counts_started_work())

    def moves(self) -> bool:
        """Whether this rank's program goes on somehow. An upload, say, uses little of the CPU."""
        return (
            self.idle < MOVED_SECONDS
            or self.computes()
            or (self.kind in (ELSEWHERE, LEAVING) and self.cpu > _USED)
        )

    def waits(self) -> bool:
        """Whether it waits for other ranks, by its stack. A backward pass on the CPU does not."""
        return self.kind in WAITS and not self.computes()

    def counts_started_work(self) -> bool:
        """Whether its counters say what has been handed to the GPU, and not what has been done."""
        return groups.counts_started_work(self.backend)

    def name(self) -> str:
        """``rank 2 (host, pid 4711)``."""
        return "rank %d (%s, pid %d)" % (self.rank, self.host, self.pid)

    def where(self) -> str:
        """``waiting for its DataLoader at train.py:40 in main: its DataLoader worker 4711, which …``."""
        return "%s: %s" % (self.standing, self.detail) if self.detail else self.standing

    def dump(self) -> str:
        """JSON."""
        return json.dumps(dataclasses.asdict(self))


def parse(text: str, rank: int) -> Optional[Post]:
    """The post of ``rank``, None if it is not one: what a peer sends is checked, never executed."""
    try:
        said = json.loads(text)
        post = Post(
            rank=int(said["rank"]), host=str(said["host"])[:200], pid=int(said["pid"]),
            kind=str(said["kind"])[:40], what=str(said["what"])[:60],
            standing=str(said["standing"])[:_LONGEST_SENTENCE],
            idle=float(said["idle"]), cpu=float(said["cpu"]),
            counters={str(k)[:60]: int(v) for k, v in list(said["counters"].items())[:_MOST_GROUPS]},
            stack=[str(line)[:_LONGEST_LINE] for line in said["stack"][:LONGEST_STACK]],
            detail=str(said["detail"])[:_LONGEST_SENTENCE], backend=str(said["backend"])[:40],
            members=[int(member) for member in said["members"][:_MOST_RANKS]],
            neighbours={
                int(k): str(v)[:_LONGEST_SENTENCE]
                for k, v in list(said["neighbours"].items())[:_MOST_GROUPS]
            },
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
    return post if post.rank == rank else None
