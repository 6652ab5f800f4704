"""A report as text for people and as JSON for programs."""

from __future__ import annotations

import os
from typing import Any, Dict, List

from ..tables import heading, one_line, paragraph, table
from . import causes, collectives
from .events import Event
from .findings import Finding, Report

JSON_VERSION = 1
_HELP_PREFIX = {causes.PATCH: "", causes.SETTING: "setting ", causes.COMMAND: "ddp-patches "}


def text(report: Report, colours: bool = False) -> str:
    """The finding, what it means, what to try, and the evidence. Never has control characters from a log."""
    if not report.findings and not report.notes:
        return "Nothing was found that explains an end or a hang.\n\n" + _read(report)
    lines: List[str] = []
    main, others = report.findings[:1], report.findings[1:]
    for finding in main:
        lines += _main(finding, colours)
    if not main:
        lines += [heading("Nothing has failed in these logs.", colours)]
    if others:
        lines += ["", heading("Also found", colours)]
        for finding in others[:8]:
            lines += [paragraph("- %s%s" % (_ended(finding.sentence), _at(finding)))]
    if report.notes:
        lines += ["", heading("Notes (no reason for the end)", colours)]
        for note in report.notes:
            named = ", ".join(entry.name for entry in note.help if entry.what == causes.PATCH)
            lines += [
                paragraph(
                    "- %s%s%s" % (_ended(note.sentence), _at(note), "; see %s" % named if named else "")
                )
            ]
    return "\n".join(lines + ["", _read(report)])


def _main(finding: Finding, colours: bool) -> List[str]:
    lines = [heading(paragraph(_ended(finding.sentence), indent=0), colours)]
    for title, sentences in (("Certain", finding.certain), ("Likely", finding.likely)):
        if sentences:
            lines += ["", heading(title, colours)] + [paragraph("- " + sentence) for sentence in sentences]
    if finding.meaning:
        lines += ["", heading("What it means", colours), paragraph(finding.meaning)]
    if finding.advice:
        lines += ["", heading("What to try", colours)] + [paragraph("- " + line) for line in finding.advice]
    if finding.help:
        rows = [[_HELP_PREFIX[entry.what] + entry.name, entry.how] for entry in finding.help]
        lines += ["", heading("What ddp_patches does about it", colours), table(rows)]
    if finding.evidence:
        lines += ["", heading("Evidence", colours)]
        for event in finding.evidence:
            lines += ["  " + one_line(event.where), paragraph(event.text, indent=4)]
    return lines


def _ended(sentence: str) -> str:
    shown = one_line(sentence)
    return shown if shown.endswith((".", "!", "?")) else shown + "."


def _at(finding: Finding) -> str:
    return " (%s)" % finding.evidence[0].where if finding.evidence else ""


def _read(report: Report) -> str:
    files = [source for source in report.sources if source.lines]
    lines = sum(source.lines for source in files)
    said = ["Read %d line%s of %d file%s" % (lines, "s"[: lines != 1], len(files), "s"[: len(files) != 1])]
    if report.world_size:
        said.append(
            "the job had %s%d ranks" % ("" if report.is_world_certain else "at least ", report.world_size)
        )
    if report.dropped:
        said.append("%d repeated messages were left out" % report.dropped)
    notes = ["%s: %s" % (os.path.basename(s.path) or s.path, s.note) for s in report.sources if s.note]
    notes += ["%s holds %d runs, the last one is explained" % (os.path.basename(s.path), s.attempts)
              for s in report.sources if s.attempts > 1]  # fmt: skip
    return "\n".join(
        [paragraph("; ".join(said) + ".", indent=0)] + [paragraph(note, indent=0) for note in notes[:6]]
    )


def as_dict(report: Report) -> Dict[str, Any]:
    """The report for programs. New keys may be added; those that are here keep name and meaning."""
    verdict = report.verdict
    return {
        "version": JSON_VERSION,
        "found": bool(report.findings or report.notes),
        "headline": one_line(report.findings[0].sentence) if report.findings else "",
        "findings": [_finding(finding) for finding in report.findings],
        "notes": [_finding(finding) for finding in report.notes],
        "job": {"world_size": report.world_size, "world_size_certain": report.is_world_certain},
        "first_failure": None if report.first_failure is None else {
            "rank": report.first_failure.rank,
            "local_rank": report.first_failure.local_rank,
            "exception": report.first_failure.facts.get("type", ""),
            "message": report.first_failure.facts.get("said", ""),
            "place": report.first_failure.facts.get("place", ""),
        },
        "timeouts": None if verdict is None else {
            "verdict": verdict.kind,
            "missing_ranks": verdict.missing,
            "missing_certain": verdict.is_certain,
            "completed": verdict.completed,
            "waiting": [_waiting(item) for item in verdict.waiting],
        },
        "sources": [
            {"path": one_line(s.path), "lines": s.lines, "note": one_line(s.note), "attempts": s.attempts}
            for s in report.sources
        ],
    }  # fmt: skip


def _waiting(item: collectives.Waiting) -> Dict[str, Any]:
    return {
        "rank": item.rank,
        "sequence": item.sequence,
        "operation": item.operation or None,
        "elements": item.elements or None,
        "limit_seconds": item.limit,
        "elapsed_seconds": item.elapsed,
    }


def _finding(finding: Finding) -> Dict[str, Any]:
    return {
        "kind": finding.kind,
        "sentence": one_line(finding.sentence),
        "is_certain": finding.is_certain,
        "ranks": finding.ranks,
        "certain": [one_line(sentence) for sentence in finding.certain],
        "likely": [one_line(sentence) for sentence in finding.likely],
        "meaning": finding.meaning,
        "advice": finding.advice,
        "addressed_by": [{"what": e.what, "name": e.name, "how": e.how} for e in finding.help],
        "evidence": [_evidence(event) for event in finding.evidence],
    }


def _evidence(event: Event) -> Dict[str, Any]:
    return {"file": one_line(event.source), "line": event.line, "text": event.text, "rank": event.rank}
