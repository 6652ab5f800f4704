"""What was found in the logs, kept in bounded memory."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Mapping, Optional, Tuple

from .. import console

LONGEST_TEXT = 400  # characters of a line that is kept as evidence
_LONGEST_FACT = 2000
_MOST_OF_A_KIND = 4000  # a job of a thousand ranks has a few thousand; a flood of one kind hides no other
_MOST_REPEATED = 3  # of one kind from one rank in one file: the first ones tell, the rest repeats them


@dataclasses.dataclass(frozen=True)
class Event:
    """One message of a log.

    ``rank``: the global rank that wrote it, None where the log does not say; ``order``: its number among all
    events, which is an order in time only within one ``source``; ``clock``: seconds since midnight;
    ``stage``: what the job was at, by the last line that told.
    """

    kind: str
    source: str
    line: int
    text: str
    order: int
    rank: Optional[int] = None
    local_rank: Optional[int] = None
    clock: Optional[float] = None
    stage: str = ""
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def number(self, name: str) -> Optional[int]:
        """A fact as a number, None if the message had none."""
        return whole(self.facts.get(name))

    @property
    def where(self) -> str:
        """``file:line``."""
        return "%s:%d" % (self.source, self.line)


def whole(text: Optional[str]) -> Optional[int]:
    """An integer of at most 15 digits, else None: what is longer is no rank and no sequence number."""
    if not text or len(text) > 16:
        return None
    try:
        return int(text)
    except ValueError:
        return None


@dataclasses.dataclass
class Source:
    """One file that was read. ``note``: why it was not, or not to its end."""

    path: str
    lines: int = 0
    note: str = ""
    attempts: int = 1  # runs that were appended to it; only the last one counts


class Collector:
    """Takes the events in the order in which they are read."""

    def __init__(self) -> None:
        self.events: List[Event] = []
        self.sources: List[Source] = []
        self.dropped = 0  # events beyond what is kept
        self._order = 0
        self._counts: Dict[str, int] = {}
        self._seen: Dict[Tuple[str, str, Optional[int], str], int] = {}

    def add(self, kind: str, source: str, line: int, text: str, *, rank: Optional[int] = None,
            local_rank: Optional[int] = None, clock: Optional[float] = None, stage: str = "",
            facts: Optional[Mapping[str, str]] = None) -> None:  # fmt: skip
        """Keep an event, if it is not one of too many."""
        self._order += 1
        kept = {name: clean(value, _LONGEST_FACT) for name, value in (facts or {}).items() if value}
        which = kept.get("sequence") or kept.get("group") or kept.get("type") or kept.get("pid") or ""
        key = (kind, source, rank, which)
        repeated = self._seen.get(key, 0)
        if repeated >= _MOST_REPEATED or self._counts.get(kind, 0) >= _MOST_OF_A_KIND:
            self.dropped += 1
            return
        self._seen[key] = repeated + 1
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self.events.append(
            Event(kind, source, line, clean(text, LONGEST_TEXT), self._order, rank, local_rank, clock,
                  stage, kept)
        )  # fmt: skip

    def begin_again(self, source: Source) -> None:
        """Another run has been appended to the file: what the earlier ones left is forgotten."""
        source.attempts += 1
        self.events = [event for event in self.events if event.source != source.path]
        self._counts = {}
        for event in self.events:
            self._counts[event.kind] = self._counts.get(event.kind, 0) + 1
        self._seen = {key: count for key, count in self._seen.items() if key[1] != source.path}

    def of(self, *kinds: str) -> List[Event]:
        """The events of these kinds, in order."""
        return [event for event in self.events if event.kind in kinds]


def clean(text: str, longest: int) -> str:
    """``text`` in one line, without control characters, at most ``longest`` characters."""
    joined = " ".join(console.printable(text[: longest * 2]).split())
    return joined if len(joined) <= longest else joined[: longest - 3] + "..."
