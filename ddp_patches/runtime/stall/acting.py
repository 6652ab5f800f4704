"""When a job that stands still is ended: pure decisions.

Two rules. The setting ``on_stall=abort`` ends a job ``abort_after`` a finding of class *failure*. And a
limit that we have raised protects ranks that move: once the caller's own limit has passed, and nothing
moves on any rank, the job ends as it would have ended without us.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Mapping, Optional

from ... import settings
from .findings import FAILURE, Finding
from .post import Post


@dataclasses.dataclass(frozen=True)
class Limits:
    """Seconds. ``own``: the process group's limit without us; None where it has not been raised."""

    own: Optional[float]
    stall_after: float
    abort_after: Optional[float]  # None: on_stall is report


@dataclasses.dataclass(frozen=True)
class End:
    """The job is to end in ``seconds`` (0 or less: now) unless something moves; ``reason`` for people."""

    seconds: float
    reason: str

    def sentence(self) -> str:
        """The reason as one."""
        return self.reason[:1].upper() + self.reason[1:] + "."


def end(finding: Finding, posts: Mapping[int, Post], limits: Limits) -> Optional[End]:
    """When the job ends; None: it goes on waiting."""
    if finding.severity != FAILURE or any(post.moves() for post in posts.values()):
        return None
    ends = []
    if limits.abort_after is not None:
        longest = max(post.idle for post in posts.values())
        after = settings.format_duration(limits.abort_after)
        reason = "the setting on_stall=abort, with abort_after=%s" % after
        ends.append(End(limits.stall_after + limits.abort_after - longest, reason))
    if limits.own is not None:
        shortest = min(post.idle for post in posts.values())
        own = settings.format_duration(limits.own)
        reason = "no rank moves, and the process group's own limit of %s has passed" % own
        ends.append(End(limits.own - shortest, reason))
    return min(ends, key=lambda each: each.seconds) if ends else None


def end_alone(idle: float, own: Optional[float]) -> Optional[End]:
    """When a rank ends that waits and cannot ask whether anything moves elsewhere: as it would without us.

    ``idle``: seconds for which it has stood; ``own`` as in :class:`Limits`.
    """
    if own is None:
        return None
    reason = "no other rank can be asked, and the process group's own limit of %s has passed"
    return End(own - idle, reason % settings.format_duration(own))


def what_happens(ending: Optional[End], timeout: str) -> str:
    """The report's line about that; ``timeout``: the limit in force, as people write it."""
    if ending is None:
        return "What happens next: it goes on waiting, at most until the limit of the process group (%s)." % (
            timeout
        )
    clock = time.strftime("%H:%M:%S", time.localtime(time.time() + max(0.0, ending.seconds)))
    return "What happens next: unless something moves, this job is ended at %s (in %s): %s." % (
        clock,
        settings.format_duration(max(0, round(ending.seconds))),
        ending.reason,
    )
