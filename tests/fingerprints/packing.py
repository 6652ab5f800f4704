"""Writes what ddp_patches/engine/known.py reads and explains."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence

from ddp_patches.engine.fingerprint import Definition

Release = Dict[str, Optional[Definition]]  # by target; None: it is not there


def packed(releases: Sequence[tuple[str, Release]]) -> dict[str, Any]:
    """The part of a package: (version, what its targets are) of each release, oldest first."""
    order = list(dict.fromkeys(version for version, _ in releases))
    targets: dict[str, dict[Definition, list[str]]] = {}
    for version, found in releases:
        for target, definition in found.items():
            if definition is not None:
                targets.setdefault(target, {}).setdefault(definition, []).append(version)
    return {
        "looked_at": " ".join(order),
        "targets": {t: _entries(targets[t], order) for t in sorted(targets)},
    }


def _entries(definitions: Mapping[Definition, Iterable[str]], order: Sequence[str]) -> list[dict[str, str]]:
    entries = []
    before: set[str] = set()
    for definition, versions in definitions.items():
        calls = set(definition.calls)
        changes = ["+" + name for name in sorted(calls - before)] + [
            "-" + name for name in sorted(before - calls)
        ]
        before = calls
        entries.append({
            "fingerprint": definition.fingerprint,
            "signature": definition.signature,
            "calls": " ".join(changes),
            "releases": " ".join(ranges(versions, order)),
        })  # fmt: skip
    return entries


def ranges(versions: Iterable[str], order: Sequence[str]) -> list[str]:
    """``first..last`` for those that follow each other in ``order``."""
    found: list[list[int]] = []
    for number in sorted({order.index(version) for version in versions}):
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return [order[run[0]] if len(run) == 1 else "%s..%s" % (order[run[0]], order[run[-1]]) for run in found]


def as_text(content: Mapping[str, Any]) -> str:
    """JSON with one line for each definition, so that a change shows as a line."""
    parts = []
    for package in sorted(content):
        targets = [
            "   %s: [\n%s\n   ]" % (json.dumps(target), ",\n".join("    " + json.dumps(e) for e in entries))
            for target, entries in content[package]["targets"].items()
        ]
        looked_at = json.dumps(content[package]["looked_at"])
        parts.append(
            ' %s: {\n  "looked_at": %s,\n  "targets": {\n%s\n  }\n }'
            % (json.dumps(package), looked_at, ",\n".join(targets))
        )
    return "{\n%s\n}\n" % ",\n".join(parts)
