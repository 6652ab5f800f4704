"""The sentences about a time-out: who waited for whom, in what, and at what the job was."""

from __future__ import annotations

import dataclasses
from typing import List, Optional

from ..settings import format_duration
from . import collectives, messages
from .collectives import Verdict, phrase
from .events import Collector

_PHASE_OF_STAGE = {messages.SCAN: "start phase", messages.TRAINING: "training phase",
                   messages.EVALUATION: "evaluation phase", messages.END: "end phase"}  # fmt: skip
_AT = {"start phase": "at the start of the job", "training phase": "in the middle of training",
       "evaluation phase": "at an evaluation", "end phase": "at the end of the job"}  # fmt: skip
_WAITED = ("gloo timeout", "nccl timeout", "nccl aborted")
_HANDED_ROUND = ("BROADCAST", "ALLGATHER")
_SMALL = 4096  # elements: objects and flags, not gradients


@dataclasses.dataclass
class Said:
    """``phase``: a key of the causes, "" where the log does not tell."""

    sentence: str
    is_certain: bool
    certain: List[str]
    likely: List[str]
    phase: str


def waiting_finding(verdict: Verdict, collector: Collector, world: Optional[int]) -> Said:
    """Everything that is said about a time-out."""
    certain, likely = list(verdict.certain), list(verdict.likely)
    certain += _numbers(verdict)
    certain += _places(verdict, collector)
    phase, is_sure = phase_of(verdict)
    if phase:
        (certain if is_sure else likely).append(_phase_sentence(verdict, phase, is_sure))
    likely += _hints(verdict)
    is_certain = verdict.is_certain or verdict.kind in ("different collectives", "waited")
    return Said(_sentence(verdict, world), is_certain, certain, likely, phase)


def phase_of(verdict: Verdict) -> tuple[str, bool]:
    """At what the job was, and whether the number of collectives proves it."""
    if verdict.completed is not None and verdict.completed <= collectives.FEW:
        return "start phase", True
    stages = [item.event.stage for item in verdict.waiting if item.event.stage]
    if stages:
        return _PHASE_OF_STAGE[stages[0]], False
    return ("training phase", False) if verdict.completed is not None else ("", False)


def _sentence(verdict: Verdict, world: Optional[int]) -> str:
    waits = [item.rank for item in verdict.waiting]
    call = _call(verdict)
    if verdict.kind == "different collectives":
        low, high = verdict.waiting[0], verdict.waiting[-1]
        places = ["rank %d in number %s (%s)" % (i.rank, i.sequence, i.call()) for i in (low, high)]
        return "The ranks were in different collectives: %s" % ", ".join(places)
    if verdict.kind == "transport":
        return "Nobody was missing: all %d ranks were in the same collective (%s) and it did not end" % (
            len(waits),
            call,
        )
    waited = ""
    if waits:
        duration = _duration(verdict)
        waited = "%s waited%s in %s" % (phrase(waits), " " + duration if duration else "", call)
    if verdict.kind == "waited":
        who = waited[:1].upper() + waited[1:] if waited else "Ranks waited in a collective"
        return "%s and gave up; which rank was missing is not in this log" % who
    of = " of %d" % world if world else ""
    missing = phrase(verdict.missing)
    if waited:
        them = "it" if len(verdict.missing) == 1 else "them"
        waited = ": " + waited.replace(" in ", " for %s in " % them, 1)
    probably = "" if verdict.is_certain else "probably "
    return "%s%s %snever arrived%s" % (missing[:1].upper() + missing[1:], of, probably, waited)


def _call(verdict: Verdict) -> str:
    calls = [item.call() for item in verdict.waiting]
    return max(calls, key=calls.count) if calls else "a collective"


def _duration(verdict: Verdict) -> str:
    seconds = [item.elapsed or item.limit for item in verdict.waiting if item.elapsed or item.limit]
    longest = max((second for second in seconds if second), default=0.0)
    if not longest:
        return ""
    return format_duration(round(longest / 60) * 60 if longest >= 600 else round(longest))


def _numbers(verdict: Verdict) -> List[str]:
    said = []
    sequences = {item.sequence for item in verdict.waiting if item.sequence is not None}
    if verdict.kind != "different collectives" and len(sequences) == 1 and len(verdict.waiting) > 1:
        said.append(
            "They were all in collective number %d: the sequence numbers agree." % next(iter(sequences))
        )
    elif verdict.kind != "different collectives" and len(sequences) == 1:
        said.append("It was collective number %d." % next(iter(sequences)))
    limits = sorted({item.limit for item in verdict.waiting if item.limit})
    if limits:
        said.append(
            "The group's limit was %s." % " and ".join(format_duration(limit) for limit in limits[:3])
        )
    return said


def _places(verdict: Verdict, collector: Collector) -> List[str]:
    """Where the waiting ranks called the collective, in the user's code."""
    places: dict[str, list[int]] = {}
    waits = {item.rank for item in verdict.waiting}
    for event in collector.of("waits at", "exception"):
        if event.rank not in waits or not event.facts.get("place"):
            continue
        if event.kind == "waits at" or event.facts.get("cause") in _WAITED:
            ranks = places.setdefault(event.facts["place"], [])
            ranks += [event.rank] if event.rank not in ranks else []
    return ["It was called at %s (%s)." % (place, phrase(ranks)) for place, ranks in list(places.items())[:4]]


def _phase_sentence(verdict: Verdict, phase: str, is_sure: bool) -> str:
    if is_sure:
        done = max(0, verdict.completed or 0)
        return "It happened in the first collectives of the group: %d had gone well." % done
    if verdict.completed is not None and verdict.completed > collectives.FEW:
        return "It happened %s, after %d collectives." % (_AT[phase], verdict.completed)
    return "It happened %s, by the last line of progress." % _AT[phase]


def _hints(verdict: Verdict) -> List[str]:
    said = []
    calls = {(item.operation, item.elements) for item in verdict.waiting}
    if calls == {("ALLREDUCE", "1")}:
        said.append("An all-reduce of one number is a barrier, or the mean of a count or a loss.")
    sizes = [int(size[:15]) for operation, size in calls if operation in _HANDED_ROUND and size.isdecimal()]
    if sizes and len(sizes) == len(calls) and max(sizes) <= _SMALL:
        said.append("So few elements are a flag or an object that is handed round (a stop flag, results, a "
                    "path), "
                    "not gradients: look at what rank 0 does alone before it.")  # fmt: skip
    return said
