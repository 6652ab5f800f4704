"""The stall report: as text for the log, complete by itself, and as JSON with all stacks for programs."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Dict, List, Mapping, Optional

from ... import settings
from . import advice
from .acting import End
from .findings import Finding
from .post import Post

_MOST_LINES = 64  # ranks in the table; the JSON file has all


@dataclasses.dataclass(frozen=True)
class Report:
    """One report. ``number``: of this standstill, from 1; ``next``: what happens next, as a sentence."""

    number: int
    finding: Finding
    posts: Mapping[int, Post]
    silent: Mapping[int, str]
    ending: Optional[End]
    next: str

    @property
    def idle(self) -> float:
        """Seconds for which the longest-standing rank has not moved."""
        return max(post.idle for post in self.posts.values())

    def text(self) -> str:
        """One line the first time, then the whole table."""
        first = "STALL, %s. %s" % (settings.format_duration(round(self.idle)), self.finding.sentence)
        if self.number == 1:
            return first
        kind = self.finding.kind
        lines = [first, advice.meaning(kind), "Try: " + advice.what_to_try(kind), self.next]
        return "\n".join(lines + ["  " + line for line in self._table()])

    def _table(self) -> List[str]:
        ranks = sorted({*self.posts, *self.silent})
        lines = [self._line(rank) for rank in ranks[:_MOST_LINES]]
        more = len(ranks) - _MOST_LINES
        return lines + (["and %d more ranks" % more] if more > 0 else [])

    def _line(self, rank: int) -> str:
        if rank in self.silent:
            return "rank %d: %s" % (rank, self.silent[rank])
        post = self.posts[rank]
        counts = ["%s %d" % item for item in sorted(post.counters.items())]
        return "%s: %s; for %ds; %d%% CPU; %s" % (
            post.name(),
            post.where(),
            post.idle,
            round(100 * post.cpu),
            "collectives: " + ", ".join(counts) if counts else "collectives are not counted here",
        )

    def as_dict(self) -> Dict[str, Any]:
        """For JSON: the finding, and every rank with its stack."""
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "number": self.number,
            "seconds": round(self.idle, 1),
            "kind": self.finding.kind,
            "severity": self.finding.severity,
            "sentence": self.finding.sentence,
            "missing": list(self.finding.missing),
            "meaning": advice.meaning(self.finding.kind),
            "advice": advice.what_to_try(self.finding.kind),
            "next": self.next,
            "ranks": [dataclasses.asdict(self.posts[rank]) for rank in sorted(self.posts)],
            "silent": {str(rank): self.silent[rank] for rank in sorted(self.silent)},
        }
