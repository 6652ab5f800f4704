"""Exceptions: which was the first, and which are only consequences."""

from __future__ import annotations

import re
from typing import List, Optional, Sequence, Set, Tuple

from . import causes, collectives
from .collectives import phrase
from .events import Collector, Event
from .finding import Finding, capital, details, short

# What a rank says that lost another one, or waited for it: never the first failure.
_CONSEQUENCES = frozenset(
    ("peer gone", "store gone", "nccl aborted", "nccl taken "
                                                "down", "nccl timeout", "gloo timeout", "missing named",
     "dump signal", "spawned process died", "command died", "command failed", "launcher signalled")
)  # fmt: skip
_CONSEQUENCE_TYPES = frozenset(
    ("ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException",
     "SignalException", "BrokenPipeError", "ConnectionResetError", "ConnectionRefusedError")
)  # fmt: skip
# May follow from another rank's end: the first failure only if nothing else is.
_WEAK = frozenset(
    (
        "store timeout",
        "nccl setup",
        "store barrier",
        "store unreachable",
        "rendezvous",
        "worker error",
        "heartbeat",
    )
)
_WEAK_TYPES = frozenset(("KeyboardInterrupt", "SystemExit", "LeaderFailed", "LeaderTooSlow"))


def exceptions(collector: Collector, waited: Set[int],
                verdict: Optional[collectives.Verdict]) -> Tuple[List[Event], List[Event]]:  # fmt: skip
    strong: List[Event] = []
    weak: List[Event] = []
    begin = {item.event.source: item.event.order for item in reversed(verdict.waiting)} if verdict else {}
    for event in collector.of("exception"):
        name, cause = event.facts["type"].rpartition(".")[2], event.facts.get("cause", "")
        if name in _CONSEQUENCE_TYPES or cause in _CONSEQUENCES:
            continue
        # After its own time-out a rank may raise anything.
        if event.rank in waited and event.order > begin.get(event.source, event.order):
            continue
        (weak if name in _WEAK_TYPES or cause in _WEAK else strong).append(event)
    return strong, weak


def first_of(exceptions: Sequence[Event], collector: Collector) -> Event:
    """The first in time: as our own lines say, by place in the file, or by the launcher's table."""
    told = told_first(collector)
    for event in exceptions:
        if told is not None and event.rank in told.ranks:
            return event
    if len({event.source for event in exceptions}) > 1:
        roots = {event.rank for event in collector.of("exit") if event.facts.get("root")}
        locals_ = {event.local_rank for event in collector.of("exit") if event.facts.get("root")}
        for event in exceptions:
            if event.rank in roots or (event.rank is None and event.local_rank in locals_ - {None}):
                return event
    return exceptions[0]


def told_first(collector: Collector) -> Optional[Finding]:
    """The rank that failed first, as ddp_patches has said on the ranks that failed after it."""
    for event in collector.of("ours"):
        found = _TOLD.search(event.facts.get("said", ""))
        if found is not None:
            finding = Finding("exception", found.group(1), [int(found.group(2))], evidence=[event])
            finding.certain.append("The other ranks heard of it from that rank itself.")
            return finding.explain("exception")
    return None


_TOLD = re.compile(
    r"(Rank (\d{1,6}) \(.{1,200}?\) failed first, at .{1,1500}?)\.(?: What (?:follows|other) |$)"
)


def of_exception(first: Event, exceptions: Sequence[Event], collector: Collector,
                       verdict: Optional[collectives.Verdict]) -> Finding:  # fmt: skip
    name, said, place = first.facts["type"], first.facts.get("said", ""), first.facts.get("place", "")
    same = [
        e for e in exceptions if (e.facts["type"], e.facts.get("place")) == (name, first.facts.get("place"))
    ]
    ranks = sorted({event.rank for event in same if event.rank is not None})
    cause = first.facts.get("cause", "")
    is_interrupt = name == "KeyboardInterrupt"
    kind = "interrupted" if is_interrupt else cause if cause in causes.CAUSES else "exception"
    finding = Finding(kind, "", ranks, evidence=[first] + [e for e in same if e is not first][:3])
    entry = exit_of(first, collector)
    if not ranks and entry is not None and entry.rank is not None:
        finding.ranks = [entry.rank]
        finding.is_certain = False
        finding.likely.append(
            "It was rank %d: no other rank ended with an exit code of its own." % entry.rank
        )
    elif not ranks and first.local_rank is not None:
        finding.certain.append("It was the process with local rank %d." % first.local_rank)
    who = capital(phrase(finding.ranks)) if finding.ranks else "A process (the log does not name its rank)"
    error = "%s: %s" % (name, said) if said else name
    title = "%s, " % causes.CAUSES[kind].title if kind not in ("exception", "interrupted") else ""
    finding.sentence = "%s failed%s: %s%s%s" % (
        who + place_and_time(entry), " first" if len(ranks) < 2 else " with the same error", title,
        short(error, 100 if title else 240), " (%s)" % place if place else "",
    )  # fmt: skip
    if entry is not None:
        finding.evidence.append(entry)
    finding.certain += consequences(first, ranks, collector, verdict)
    finding.certain += details(collector.of(kind))
    return finding.explain(kind)


def exit_of(event: Event, collector: Collector) -> Optional[Event]:
    """The launcher's entry for the rank that raised, or the only one that can be it."""
    entries = collector.of("exit")
    if event.rank is not None:
        return next((entry for entry in entries if entry.rank == event.rank), None)
    own = [entry for entry in entries if (entry.number("exitcode") or 0) > 0]
    if event.local_rank is not None:
        own = [entry for entry in own if entry.local_rank == event.local_rank]
    return own[0] if len({entry.rank for entry in own}) == 1 else None


def place_and_time(entry: Optional[Event]) -> str:
    if entry is None:
        return ""
    parts = [entry.facts.get("host", ""), entry.facts.get("time", "").replace("_", " ")]
    return " (%s)" % ", ".join(part for part in parts if part) if any(parts) else ""


def consequences(first: Event, ranks: Sequence[int], collector: Collector,
                  verdict: Optional[collectives.Verdict]) -> List[str]:  # fmt: skip
    said = []
    if verdict is not None and verdict.waiting:
        waits = [item.rank for item in verdict.waiting if item.rank not in ranks]
        if waits:
            said.append(
                "%s waited for it in a collective and timed out: a consequence." % capital(phrase(waits))
            )
    lost = sorted(
        {e.rank for e in collector.of("peer gone", "store gone") if e.rank is not None} - set(ranks)
    )
    if lost:
        said.append("%s lost the connection to it: a consequence." % capital(phrase(lost)))
    elif collector.of("peer gone", "store gone"):
        said.append("The lines about closed or reset connections are a consequence.")
    for entry in collector.of("exit"):
        if entry.facts.get("root") and ranks and entry.rank not in ranks:
            said.append("The launcher's table calls rank %s the root cause; it only saw that process end "
                        "first."
                        % entry.rank)  # fmt: skip
            break
    return said
