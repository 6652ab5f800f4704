"""What follows from the collected events: who failed first, who was missing, what is a consequence."""

from __future__ import annotations

import dataclasses
from typing import List, Optional, Sequence, Set, Tuple

from . import causes, collectives, deaths, failures
from .collectives import phrase
from .events import Collector, Event, Source
from .finding import Finding, capital, of_messages
from .waiting_text import waiting_finding

# Messages that are findings without a traceback, in this order.
_PLAIN = (
    "host memory", "worker bus error", "worker killed", "address in use", "parameters differ",
    "collectives differ", "losses differ", "unused parameters", "ready twice", "no valid sample",
    "worker gone", "worker slow", "gpu memory", "gpu error", "nccl error", "wrong device",
    "device refused", "integer reduce", "bool on gloo", "timeout type", "file descriptors",
    "empty loader", "store barrier", "store unreachable",
    "rendezvous", "nccl setup", "store timeout", "heartbeat",
)  # fmt: skip
_NOTES = ("guessed device", "not destroyed")


@dataclasses.dataclass
class Report:
    """``findings``: the most important one first; ``notes``: of no consequence for the end of the job."""

    findings: List[Finding]
    notes: List[Finding]
    world_size: Optional[int]
    is_world_certain: bool
    sources: List[Source]
    dropped: int
    first_failure: Optional[Event] = None
    verdict: Optional[collectives.Verdict] = None


def conclude(collector: Collector) -> Report:
    """All findings of a job."""
    world, is_sure = world_size(collector)
    verdict = collectives.reason(collector.events, world, is_sure or _is_table_complete(collector))
    waited = {item.rank for item in verdict.waiting} if verdict else set()
    strong, weak = failures.exceptions(collector, waited, verdict)
    dead = deaths.deaths(collector, waited)
    stalls = _ours(collector, "STALL")
    found: List[Finding] = []
    first: Optional[Event] = None
    if strong:
        first = failures.first_of(strong, collector)
        found.append(failures.of_exception(first, strong, collector, verdict))
    told = failures.told_first(collector)
    if told is not None and not strong:
        found.append(told)
    found += [_death_finding(death, collector, verdict) for death in dead]
    found += _stopped(collector, bool(found or verdict or stalls))
    if stalls:
        found.insert(0 if not strong and not dead and told is None else len(found), _stall_finding(stalls))
    if verdict is not None and not strong and not dead:
        found.insert(1 if stalls else 0, _of_verdict(verdict, collector, world))
    if not found and weak:
        first = failures.first_of(weak, collector)
        found.append(failures.of_exception(first, weak, collector, verdict))
    found += _plain(collector, {finding.kind for finding in found})
    found += _progress(collector) if not found else []
    found = found or _only_consequences(collector)
    notes = [of_messages(kind, collector.of(kind)) for kind in _NOTES if collector.of(kind)]
    return Report(found, notes, world, is_sure, collector.sources, collector.dropped, first, verdict)


def world_size(collector: Collector) -> Tuple[Optional[int], bool]:
    """The number of ranks, and whether the log says it; else one more than the highest rank that appears."""
    said = [event.number("ranks") or 0 for event in collector.of("started with us")]
    said = said or [event.number("ranks") or 0 for event in collector.of("world")]
    said += [event.number("world") or 0 for event in collector.of("store barrier")]
    lowest = max((event.rank + 1 for event in collector.events if event.rank is not None), default=0)
    largest = max(said, default=0)
    if largest >= max(lowest, 1):
        return largest, True
    return (lowest, False) if lowest else (None, False)


def _is_table_complete(collector: Collector) -> bool:
    """Whether the launcher's table has several ranks, without a gap: most likely all of them."""
    ranks = {event.rank for event in collector.of("exit")}
    return len(ranks) > 1 and ranks == set(range(len(ranks)))


def _death_finding(
    death: deaths.Death, collector: Collector, verdict: Optional[collectives.Verdict]
) -> Finding:
    finding = Finding(death.kind, "", [death.rank] if death.rank is not None else [], evidence=[death.event])
    who = "Rank %d" % death.rank if death.rank is not None else death.who
    name, _ = causes.SIGNALS.get(death.signal, ("signal %d" % death.signal, ""))
    whole_name = who + (failures.place_and_time(death.event) if death.event.kind == "exit" else "")
    title = causes.CAUSES[death.kind].title
    finding.sentence = "%s was ended by signal %d (%s): %s" % (whole_name, death.signal, name, title)
    finding.certain.append("%s did not end by itself: signal %d." % (who, death.signal))
    finding.certain += failures.consequences(death.event, finding.ranks, collector, verdict)
    if death.kind == "host memory":
        finding.is_certain = bool(collector.of("host memory"))
        proof = collector.of("host memory")[:1]
        finding.evidence += proof
        (finding.certain if proof else finding.likely).append(
            "The out-of-memory killer ended it%s."
            % (": the log says so" if proof else "; hardly anything else sends signal 9")
        )
    return finding.explain(death.kind)


def _stopped(collector: Collector, is_second: bool) -> List[Finding]:
    """The whole job was ended from outside."""
    kind, event = deaths.ended_from_outside(collector)
    if event is None:
        return []
    finding = Finding(
        kind, "The whole job was ended from outside: %s" % causes.CAUSES[kind].title, evidence=[event]
    )
    if kind == "terminal closed":
        finding.sentence = "The launcher got signal 1 (SIGHUP): the terminal or ssh connection was closed"
    if is_second:
        finding.likely.append("It came after the failure above, and may only have ended a job that hung.")
    return [finding.explain(kind)]


def _of_verdict(verdict: collectives.Verdict, collector: Collector, world: Optional[int]) -> Finding:
    said = waiting_finding(verdict, collector, world)
    finding = Finding(verdict.kind, said.sentence, verdict.missing, said.is_certain, said.certain,
                      said.likely, evidence=verdict.evidence)  # fmt: skip
    is_absence = verdict.kind in ("missing rank", "waited")
    return finding.explain(verdict.kind, *([said.phase] if said.phase and is_absence else []))


def _ours(collector: Collector, start: str) -> List[Event]:
    return [event for event in collector.of("ours") if event.facts.get("said", "").startswith(start)]


def _stall_finding(stalls: Sequence[Event]) -> Finding:
    last = stalls[-1]
    finding = Finding("stall", last.facts["said"].rstrip("."), evidence=[last])
    return finding.explain("stall")


def _progress(collector: Collector) -> List[Finding]:
    """The last thing that ddp_patches said, where nothing has failed."""
    for start, kind in (("init_process_group has waited", "joining"), ("waiting ", "slow leader")):
        lines = _ours(collector, start)
        if lines:
            finding = Finding(kind, capital(lines[-1].facts["said"].rstrip(".")), evidence=lines[-1:])
            return [finding.explain(kind)]
    return []


def _plain(collector: Collector, known: Set[str]) -> List[Finding]:
    return [
        of_messages(kind, collector.of(kind)) for kind in _PLAIN if kind not in known and collector.of(kind)
    ]


def _only_consequences(collector: Collector) -> List[Finding]:
    lost = collector.of("peer gone", "store gone", "nccl aborted", "nccl taken down")
    if lost:
        ranks = sorted({event.rank for event in lost if event.rank is not None})
        who = capital(phrase(ranks)) if ranks else "A rank"
        sentence = "%s lost the connection to another rank, whose own message is not here" % who
        return [Finding("connection lost", sentence, evidence=lost[:3]).explain("connection lost")]
    ended = [e for e in collector.of("exit", "launcher failed", "command failed") if e.number("exitcode")]
    if ended:
        first = next((event for event in ended if event.facts.get("root")), ended[0])
        who = "Rank %d" % first.rank if first.rank is not None else "A process"
        if first.rank is None and first.facts.get("local"):
            who = "The process with local rank %s" % first.facts["local"]
        sentence = "%s%s ended with exit code %s, and the log does not say why" % (
            who, failures.place_and_time(first), first.facts["exitcode"])  # fmt: skip
        return [Finding("failed exit", sentence, evidence=ended[:3]).explain("failed exit")]
    return []
