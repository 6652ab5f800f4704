"""A finding, and how a single message or exception becomes one."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Sequence

from . import causes
from .collectives import phrase
from .events import Event


@dataclasses.dataclass
class Finding:
    """One thing that was found. ``certain`` and ``likely`` are sentences; ``help``: what of ours helps."""

    kind: str
    sentence: str
    ranks: List[int] = dataclasses.field(default_factory=list)
    is_certain: bool = True
    certain: List[str] = dataclasses.field(default_factory=list)
    likely: List[str] = dataclasses.field(default_factory=list)
    meaning: str = ""
    advice: List[str] = dataclasses.field(default_factory=list)
    help: List[causes.Help] = dataclasses.field(default_factory=list)
    evidence: List[Event] = dataclasses.field(default_factory=list)

    def explain(self, *kinds: str) -> Finding:
        """Take over what is known of causes: meanings one after the other, and the first's advice last."""
        for cause in [causes.CAUSES[kind] for kind in kinds if kind in causes.CAUSES]:
            self.meaning = (self.meaning + " " + cause.meaning).strip()
            self.advice += [line for line in cause.advice if line not in self.advice]
            self.help += [entry for entry in cause.help if entry not in self.help]
        return self


def of_messages(kind: str, events: Sequence[Event]) -> Finding:
    ranks = sorted({event.rank for event in events if event.rank is not None})
    cause = causes.CAUSES[kind]
    who = "%s: " % capital(phrase(ranks)) if ranks else ""
    finding = Finding(kind, capital(who + cause.title), ranks, evidence=list(events[:3]))
    finding.certain += details(events)
    return finding.explain(kind)


def details(events: Sequence[Event]) -> List[str]:
    said = [detail for detail in (_detail(event) for event in events[:40]) if detail]
    return list(dict.fromkeys(said))[:8]


def _detail(event: Event) -> str:
    facts: Dict[str, str] = dict(event.facts)
    if event.kind == "store barrier":
        return "Rank %s waited for %s ranks and counted %s." % (
            event.rank,
            facts.get("world"),
            facts.get("count"),
        )
    if event.kind == "store timeout" and "count" in facts:
        return "%s of %s processes had joined." % (facts["count"], facts["world"])
    if event.kind == "store unreachable":
        return "Nobody answered at %s, port %s." % (facts.get("host"), facts.get("port"))
    if event.kind == "address in use" and "port" in facts:
        return "It is port %s." % facts["port"]
    if event.kind == "unused parameters" and "parameters" in facts:
        return "Rank %s had no gradient for: %s." % (event.rank, short(facts["parameters"], 200))
    if event.kind == "nccl setup":
        return "Rank %s waited for rank %s." % (event.rank, facts.get("from"))
    if event.kind == "collectives differ":
        return short(facts.get("both", ""), 300)
    return ""


def short(text: str, longest: int) -> str:
    """At most ``longest`` characters of ``text``."""
    return text if len(text) <= longest else text[: longest - 3].rstrip() + "..."


def capital(text: str) -> str:
    """With a capital at the start."""
    return text[:1].upper() + text[1:]
