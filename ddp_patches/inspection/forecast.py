"""What would become of each patch in a run with what is installed: the rows of ``status`` before a run."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional

from ..engine import catalogue, fingerprint, ledger, versions
from ..engine.apply import Absent
from ..engine.patch import Patch, Variant
from ..settings import SWITCH, Settings, is_off
from . import source
from .installed import Package

StandIn = Callable[[str, str], Any]


def rows(
    patches: Iterable[Patch],
    packages: Mapping[str, Package],
    settings: Settings,
    environ: Mapping[str, str] = os.environ,
    stand_in: StandIn = source.stand_in,
) -> List[Dict[str, Any]]:
    """One row for each patch and target, as in the ledger: ``waiting`` stands for would be applied."""
    found = []
    for patch in patches:
        for target in dict.fromkeys(str(variant.target) for variant in patch.variants):
            row = row_of(patch, target, packages.get(patch.package), stand_in)
            if is_off(environ):
                row.update(
                    state=ledger.SKIPPED, reason="%s=%s turns everything off" % (SWITCH, environ[SWITCH])
                )
            elif catalogue.is_skipped(patch.id, settings.skip):
                row.update(state=ledger.SKIPPED, reason="the setting skip names it")
            found.append(row)
    return found


def row_of(patch: Patch, target: str, package: Optional[Package], stand_in: StandIn) -> Dict[str, Any]:
    """State, verdict and reason of one patch at one target, by the rules that the engine applies."""
    row = {
        "id": patch.id,
        "state": ledger.SKIPPED,
        "verdict": versions.ABSENT,
        "reason": "%s is not installed" % patch.package,
        "package": patch.package,
        "version": package.version if package else "",
        "target": target,
    }
    if package is None:
        return row
    version = package.version or None
    variants = [v for v in versions.variants_for(patch, version) if str(v.target) == target]
    if not variants:
        row["reason"] = "there is no variant for %s %s" % (patch.package, version or "of unknown version")
        return row
    row.update(_judged(patch, variants[0], version, stand_in))
    if row["verdict"] not in (versions.CHANGED, versions.ABSENT, versions.FIXED):
        row["state"] = ledger.WAITING
    return row


def _judged(patch: Patch, variant: Variant, version: Optional[str], stand_in: StandIn) -> Dict[str, Any]:
    """The verdict on the first of the target's modules that this release has."""
    absences = []
    for module in variant.target.modules:
        target = "%s:%s" % (module, variant.target.attribute)
        try:
            original = stand_in(module, variant.target.attribute)
        except Absent as error:
            absences.append(str(error))
            continue
        except source.Untold as error:
            return {"verdict": "", "reason": "not known before it is imported: %s" % error, "target": target}
        found = fingerprint.of_file(source.file_of(module), variant.target.attribute)
        verdict, reason = versions.verdict(patch, variant, version, original, found)
        return {"verdict": verdict, "reason": reason, "target": target}
    return {"verdict": versions.ABSENT, "reason": "; ".join(dict.fromkeys(absences))}
