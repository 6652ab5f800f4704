"""Processes that a signal has ended, and jobs that were ended from outside."""

from __future__ import annotations

import signal as signals
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from . import causes
from .events import Collector, Event
from .tracebacks import numbers

_TERM, _KILL, _ABORT = 15, 9, 6
_BY_WORD = {"Killed": 9, "Out Of Memory": 9, "Segmentation fault": 11, "Bus error": 7, "Aborted": 6}


class Death(NamedTuple):
    """``who``: what is known of the process where its rank is not."""

    kind: str
    rank: Optional[int]
    who: str
    signal: int
    event: Event


def deaths(collector: Collector, waited: Set[int]) -> List[Death]:
    """Ranks that a signal has ended first; those that the launcher ended afterwards are left out.

    ``waited``: ranks that timed out in a collective. NCCL ends them with signal 6: a consequence.
    """
    ended_by_launcher = {event.facts.get("pid") for event in collector.of("launcher kills worker")}
    found: Dict[Tuple[Optional[int], str, int], Death] = {}
    for rank, who, number, event in _signals(collector):
        if number == _TERM or (number == _KILL and event.facts.get("pid") in ended_by_launcher):
            continue
        if number == _ABORT and (rank in waited or (rank is None and waited) or _gave_up(collector, rank)):
            continue
        kind = causes.SIGNALS.get(number, ("", "signal"))[1]
        found.setdefault((rank, who, number), Death(kind, rank, who, number, event))
    ordered = sorted(found.values(), key=lambda death: not death.event.facts.get("root"))
    known = any(death.rank is not None for death in ordered)
    ordered = [death for death in ordered if death.rank is not None or not known]
    return [death for death in ordered if death.kind != "interrupted"][:8]


def _gave_up(collector: Collector, rank: Optional[int]) -> bool:
    """Whether this rank's NCCL has said that it takes the process down."""
    lines = collector.of("nccl taken down", "nccl aborted", "dump signal", "heartbeat", "nccl progress")
    return any(event.rank == rank or event.rank is None for event in lines)


def _signals(collector: Collector) -> List[Tuple[Optional[int], str, int, Event]]:
    found = []
    has_table = bool(collector.of("exit"))
    for event in collector.events:
        code = event.number("exitcode") or 0
        if event.kind == "exit" and code < 0:
            found.append((event.rank, "", -code, event))
        elif event.kind == "launcher failed" and code < 0 and not has_table:
            found.append(
                (event.rank, "The process with local rank %s" % event.facts.get("local"), -code, event)
            )
        elif event.kind in ("command died", "spawned process died"):
            number = _number(event.facts.get("signal", ""))
            who = (
                "The process with local rank %s" % event.facts["local"]
                if "local" in event.facts
                else "A process"
            )
            found += [(event.rank, who, number, event)] if number else []
        elif event.kind in ("slurm task", "shell said"):
            number = next(
                (n for word, n in _BY_WORD.items() if event.facts.get("what", "").startswith(word)), 0
            )
            tasks = numbers(event.facts.get("tasks", "")) if number else []
            named = ", ".join(str(task) for task in tasks[:6])
            who = "Task %s on %s" % (named, event.facts["host"]) if tasks else "A process"
            found += [(None, who, number, event)] if number else []
    return found


def _number(name: str) -> int:
    return int(getattr(signals, name, 0)) or next((n for n, (s, _) in causes.SIGNALS.items() if s == name), 0)


def ended_from_outside(collector: Collector) -> Tuple[str, Optional[Event]]:
    """Why the launcher itself was ended, and the line that says so; ("", None) if it was not."""
    cancelled = collector.of("slurm cancelled")
    if cancelled:
        is_time = "TIME LIMIT" in cancelled[0].facts.get("why", "")
        return ("time limit" if is_time else "cancelled"), cancelled[0]
    for event in collector.of("launcher signalled", "launcher ends worker"):
        name = event.facts.get("name", "").replace("Signals.", "") or event.facts.get("signal", "")
        number = event.number("number") or event.number("name") or _number(name)
        if number == 1:
            return "terminal closed", event
        if event.kind == "launcher signalled" and number in (2, _TERM):
            return ("interrupted" if number == 2 else "cancelled"), event
    for event in collector.of("exit"):
        if event.number("exitcode") == -1:
            return "terminal closed", event
    return "", None
