"""From time-outs of collectives to the rank that did not come. Pure reasoning.

A rank that times out is one that waited. Two things say who was missing: torch's counters of collectives
(certain), and who is absent among those that gave up (likely, since the launcher ends the others as soon as
one has given up, mostly before they can say so).
"""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional, Sequence, Tuple

from ..settings import format_duration
from .events import Event
from .tracebacks import numbers

FEW = 20  # collectives up to which a job is at its start: DDP's construction alone makes several
_TOGETHER_SECONDS = 5.0
_SIZES_MUST_MATCH = ("ALLREDUCE", "BROADCAST", "REDUCE", "BARRIER")

_OPERATIONS = {"ALLREDUCE": "an all-reduce", "BROADCAST": "a broadcast", "ALLGATHER": "an all-gather",
               "_ALLGATHER_BASE": "an all-gather", "REDUCE_SCATTER": "a reduce-scatter", "GATHER": "a gather",
               "BARRIER": "a barrier", "SCATTER": "a scatter", "SEND": "a send",
               "RECV": "a receive"}  # fmt: skip


@dataclasses.dataclass
class Waiting:
    """What one rank waited in. ``elapsed``, ``limit``: seconds."""

    rank: int
    event: Event
    sequence: Optional[int] = None
    operation: str = ""
    elements: str = ""
    limit: Optional[float] = None
    elapsed: Optional[float] = None

    def call(self) -> str:
        """``an all-reduce of 1 number``."""
        name = _OPERATIONS.get(self.operation, self.operation or "a collective")
        if self.elements.isdecimal():
            return "%s of %s number%s" % (name, self.elements, "" if self.elements == "1" else "s")
        return name


@dataclasses.dataclass
class Verdict:
    """``kind``: missing rank, different collectives, transport or waited; ``is_certain``: of ``missing``."""

    kind: str
    waiting: List[Waiting]
    missing: List[int] = dataclasses.field(default_factory=list)
    is_certain: bool = False
    certain: List[str] = dataclasses.field(default_factory=list)
    likely: List[str] = dataclasses.field(default_factory=list)
    evidence: List[Event] = dataclasses.field(default_factory=list)
    completed: Optional[int] = None  # collectives that had gone well


def waiting_ranks(events: Sequence[Event]) -> Tuple[Dict[int, Waiting], List[Event]]:
    """What each rank waited in when it first gave up, and the time-outs of which the rank is not known."""
    found: Dict[int, Waiting] = {}
    nameless: List[Event] = []
    for event in events:
        if event.kind not in ("nccl timeout", "gloo timeout"):
            continue
        if event.rank is None:
            nameless.append(event)
            continue
        new = _waiting(event, event.rank)
        old = found.get(event.rank)
        if old is None or (
            new.sequence is not None and (old.sequence is None or new.sequence < old.sequence)
        ):
            found[event.rank] = new
    return found, nameless


def _waiting(event: Event, rank: int) -> Waiting:
    limit, elapsed = event.number("limit"), event.number("elapsed")
    is_nccl = event.kind == "nccl timeout"
    return Waiting(
        rank,
        event,
        event.number("sequence"),
        event.facts.get("operation", "") if is_nccl else "",
        event.facts.get("elements", "") or _size(event.facts.get("shape", "")),
        None if limit is None else limit / 1000,
        None if elapsed is None else elapsed / 1000,
    )


def _size(shape: str) -> str:
    return "1" if shape == "[1]" else ""


def counters(events: Sequence[Event], waiting: Dict[int, Waiting]) -> Dict[int, Tuple[int, int, Event]]:
    """By rank: the last collective that was issued and the last one that was completed, of the waiting group.

    Each process group counts for itself. A line that tells at which collective its rank gave up
    ("detected by watchdog at work: 1580") shows which group is meant; without one the numbers are
    not comparable, and nothing is returned.
    """
    group = None
    for event in events:
        if event.kind == "nccl progress" and event.rank in waiting:
            sequence = waiting[event.rank].sequence
            if sequence is not None and event.number("sequence") == sequence:
                group = group_name(event)
                break
    found: Dict[int, Tuple[int, int, Event]] = {}
    for event in events:
        if group is None or event.kind != "nccl progress" or event.rank is None or group_name(event) != group:
            continue
        enqueued, completed = event.number("enqueued"), event.number("completed")
        if enqueued is not None and completed is not None and event.rank not in found:
            found[event.rank] = (enqueued, completed, event)
    return found


def group_name(event: Event) -> str:
    """The process group of a line, as far as it is the same on all ranks; "" before torch 2.2."""
    words = event.facts.get("group", "").split()
    name = words[words.index("GUID") + 1] if "GUID" in words[:-1] else (words[1] if len(words) > 1 else "")
    return (words[2] if name == "ID" and len(words) > 2 else name).partition("(")[0]


def reason(events: Sequence[Event], world_size: Optional[int], is_world_sure: bool) -> Optional[Verdict]:
    """What follows from the time-outs; None if there are none."""
    waiting, nameless = waiting_ranks(events)
    named = [event for event in events if event.kind == "missing named"]
    if not waiting and not nameless and not named:
        return None
    ordered = [waiting[rank] for rank in sorted(waiting)]
    if named:
        return _named(named, ordered)
    counts = counters(events, waiting)
    verdict = (
        _behind(ordered, counts) or _apart(ordered) or _absent(ordered, counts, world_size, is_world_sure)
    )
    verdict.evidence += [item.event for item in ordered[:4]] + nameless[:2]
    completed = [count[1] for rank, count in counts.items() if rank in waiting]
    if completed:
        verdict.completed = max(completed)
    elif ordered and ordered[0].sequence is not None:
        verdict.completed = min(item.sequence for item in ordered if item.sequence is not None) - 1
    return verdict


def _named(named: List[Event], waiting: List[Waiting]) -> Verdict:
    missing = sorted({rank for event in named for rank in numbers(event.facts.get("missing", ""))})
    verdict = Verdict("missing rank", waiting, missing, True, evidence=named[:2])
    verdict.certain.append(
        "torch's monitored barrier asked every rank, and %s did not answer." % phrase(missing)
    )
    return verdict


def _behind(waiting: List[Waiting], counts: Dict[int, Tuple[int, int, Event]]) -> Optional[Verdict]:
    """torch's own counters: who had not issued the collective in which the others wait."""
    sequences = [item.sequence for item in waiting if item.sequence is not None]
    if not sequences or not counts:
        return None
    first = min(sequences)
    behind = sorted(rank for rank, count in counts.items() if count[0] < first)
    if not behind:
        return None
    waits = [item for item in waiting if item.rank not in behind]
    verdict = Verdict("missing rank", waits, behind, True)
    verdict.certain.append(
        "%s had issued %s; the others were in number %d: torch's counters say so."
        % (_capital(phrase(behind)), _issued([counts[rank][0] for rank in behind]), first)
    )
    verdict.evidence += [counts[rank][2] for rank in behind[:3]]
    return verdict


def _issued(numbers: List[int]) -> str:
    low, high = max(0, min(numbers)), max(0, max(numbers))
    return "collectives up to number %s" % (low if low == high else "%d to %d" % (low, high))


def _apart(waiting: List[Waiting]) -> Optional[Verdict]:
    """Ranks that gave up in different collectives."""
    places: Dict[Tuple[Optional[int], str, str], List[Waiting]] = {}
    for item in waiting:
        size = item.elements if item.operation in _SIZES_MUST_MATCH else ""
        places.setdefault((item.sequence, item.operation, size), []).append(item)
    if len(places) < 2 or any(item.sequence is None for item in waiting):
        return None
    verdict = Verdict("different collectives", waiting)
    ordered = sorted(places.values(), key=lambda items: (items[0].sequence or 0, items[0].rank))
    for items in ordered[:6]:
        ranks = [item.rank for item in items]
        verdict.certain.append("%s gave up in number %d, %s." % (
            _capital(phrase(ranks)), items[0].sequence or 0, items[0].call()))  # fmt: skip
    if ordered[0][0].sequence != ordered[-1][0].sequence:
        verdict.likely.append(
            "%s made fewer collectives than %s, or is held up by an earlier one."
            % (_capital(phrase([i.rank for i in ordered[0]])), phrase([i.rank for i in ordered[-1]]))
        )
    else:
        verdict.likely.append(
            "The same number with another operation or size: their ways have parted before."
        )
    return verdict


def _absent(waiting: List[Waiting], counts: Dict[int, Tuple[int, int, Event]], world_size: Optional[int],
            is_world_sure: bool) -> Verdict:  # fmt: skip
    ranks = [item.rank for item in waiting]
    if world_size is None or not waiting:
        return Verdict("waited", waiting)
    absent = [rank for rank in range(world_size) if rank not in set(ranks)]
    if not absent:
        return _all_there(waiting, counts, is_world_sure)
    verdict = Verdict("missing rank", waiting, absent)
    if len(absent) < len(ranks) or (world_size == 2 and is_world_sure):
        verdict.likely.append(
            "%s gave no time-out, so it is the one that did not come." % _capital(phrase(absent))
            if len(absent) == 1
            else "%s gave no time-out, so the one that did not come is among them." % _capital(phrase(absent))
        )
        return verdict
    verdict.kind = "waited"
    if not is_world_sure:
        verdict.likely.append(
            "The rank that did not come is %s, or one that does not appear in the log, which does not say "
            "how many ranks there were." % phrase(absent)
        )
        return verdict
    verdict.likely.append(
        "The rank that did not come is one of %s: as soon as one rank gives up the launcher ends the others, "
        "mostly before they can say that they waited, too." % phrase(absent)
    )
    return verdict


def _all_there(
    waiting: List[Waiting], counts: Dict[int, Tuple[int, int, Event]], is_world_sure: bool
) -> Verdict:
    if not is_world_sure and not counts:
        verdict = Verdict("waited", waiting)
        verdict.likely.append(
            "Every rank that appears in the log gave up, and the log does not say how many there were: the "
            "one that "
            "did not come may have printed nothing."
        )
        return verdict
    verdict = Verdict("transport", waiting)
    verdict.certain.append("All %d ranks gave up in the same collective." % len(waiting))
    clocks = [item.event.clock for item in waiting]
    if all(clock is not None for clock in clocks):
        spread = max(c for c in clocks if c is not None) - min(c for c in clocks if c is not None)
        if spread <= _TOGETHER_SECONDS:
            verdict.likely.append(
                "They gave up within %.1f s of each other: all had come at the same time." % spread
            )
        else:
            verdict.likely.append(
                "They gave up %s apart: the last one may have come late, after a long step of its own."
                % format_duration(round(spread))
            )
    return verdict


def phrase(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0, 1 and 2``, ``ranks 0-997 and 999``."""
    if len(ranks) == 1:
        return "rank %d" % ranks[0]
    parts: List[str] = []
    rest = sorted(ranks)
    while rest:
        size = 1
        while size < len(rest) and rest[size] == rest[0] + size:
            size += 1
        if size < 4:
            parts += [str(rank) for rank in rest[:size]]
        else:
            parts.append("%d-%d" % (rest[0], rest[size - 1]))
        rest = rest[size:]
    if len(parts) > 12:
        parts = parts[:11] + ["%d more" % (len(ranks) - 11)]
    return "ranks " + (", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
