"""The overview of a whole job, from the ledger that its rank 0 has left in the run folder."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

from . import settings
from .engine import fingerprint, versions
from .overview import PatchRow, Status, load_catalogue, severity

_OF_A_STALL = ("time", "seconds", "kind", "severity", "missing", "sentence", "path")


def of_run(record: Mapping[str, Any]) -> Status:
    """The ledger of a job, as the run folder keeps it: every rank, and one row per patch over all ranks."""
    ranks = [dict(rank) for rank in record.get("ranks") or () if isinstance(rank, dict)]
    ranks.sort(key=_number_of)
    known = ("ranks", "settings", "limits")
    return Status(
        merge(ranks),
        {name: _with_text(name, row) for name, row in dict(record.get("settings") or {}).items()},
        dict(record.get("limits") or {}),
        ranks,
        run={name: value for name, value in record.items() if name not in known},
    )


def stalls(reports: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """Of each stall report what is read first, and the file with the rest."""
    return [{name: report.get(name) for name in _OF_A_STALL} for report in reports]


def merge(ranks: Sequence[Mapping[str, Any]]) -> List[PatchRow]:
    """One row per patch and target over all ranks: the worst state, and which ranks differ from it."""
    rows: Dict[Tuple[str, str], Dict[str, Mapping[str, Any]]] = {}
    for rank in ranks:
        for row in rank.get("patches", ()):
            # By its attribute: the module is known only on ranks that have imported it.
            key = (str(row.get("id")), str(row.get("target")).rpartition(":")[2])
            rows.setdefault(key, {})[str(rank.get("rank"))] = row
    merged = []
    for by_rank in rows.values():
        worst = min(by_rank.values(), key=lambda row: severity(row.get("state", "")))
        row = PatchRow.of(worst)
        same = [rank for rank, other in by_rank.items() if other.get("state") == row.state]
        if len(same) < len(ranks):
            row.reason = "on rank %s of %d: %s" % (", ".join(same), len(ranks), row.reason)
        merged.append(row)
    return merged


def say_what_changed(rows: Sequence[PatchRow]) -> None:
    """Add to the reason of what is ``changed`` how it differs from the nearest release that is known.

    A rank does not read its frameworks' sources. They are read here, where the same version is installed.
    """
    changed = [row for row in rows if row.verdict == versions.CHANGED and "; since " not in str(row.reason)]
    if not changed:
        return
    from .inspection import installed, source

    packages = installed.find_all({row.package for row in changed})
    targets = {
        "%s:%s" % (module, variant.target.attribute): str(variant.target)
        for patch in load_catalogue()[0]
        for variant in patch.variants
        for module in variant.target.modules
    }
    for row in changed:
        target = targets.get(str(row.target))
        if target and row.package in packages and packages[row.package].version == row.version:
            module, _, attribute = row.target.partition(":")
            definition = fingerprint.of_file(source.file_of(module), attribute)
            row.reason = (row.reason or "") + versions.since(row.package, target, row.version, definition)


def _with_text(name: str, row: Any) -> Dict[str, Any]:
    if not isinstance(row, dict):
        row = {"value": row}
    value = row.get("value")
    try:
        text = settings.format_value(name, tuple(value) if isinstance(value, list) else value)
    except (TypeError, ValueError):  # written by another version of ours
        text = str(value)
    return {"value": value, "source": row.get("source", "default"), "text": text}


def _number_of(rank: Mapping[str, Any]) -> int:
    number = rank.get("rank")
    return number if isinstance(number, int) else -1
