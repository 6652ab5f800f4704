"""Turning the catalogue on and off in this process."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import Dict, List, Optional, Tuple

from .. import console, settings
from . import apply, catalogue, hooks, ledger, versions
from .patch import Patch, Variant

_lock = threading.RLock()
_enabled = False
_in_place: Dict[Tuple[str, str], apply.Replacement] = {}  # (patch id, target), in the order of applying


def enable_from_active_settings() -> None:
    """Apply what can be applied now and wait for the modules of the rest. Takes over new settings.

    Raises StrictError where ``strict`` is on and a patch cannot be applied.
    """
    global _enabled
    with _lock:
        if _enabled:
            disable()
        loaded = settings.active()
        settings.activate(loaded)
        patches = catalogue.load()
        _report_problems(list(loaded.problems) + catalogue.unknown_skips(loaded.settings.skip))
        _enabled = True
        for patch in patches:
            _enter(patch)
        for name in _module_names(patches):
            hooks.when_imported(name, _module_ready)


def disable() -> None:
    """Take all replacements out again, last first, and forget the ledger."""
    global _enabled
    with _lock:
        _enabled = False
        while _in_place:
            _, replacement = _in_place.popitem()
            replacement.remove()
        ledger.clear()


def is_enabled() -> bool:
    """Whether the engine is on in this process."""
    return _enabled


def replacements(patch_id: str) -> List[apply.Replacement]:
    """What is in place of a patch."""
    with _lock:
        return [replacement for (name, _), replacement in _in_place.items() if name == patch_id]


def _module_names(patches: List[Patch]) -> List[str]:
    names = [module for p in patches for variant in p.variants for module in variant.target.modules]
    return list(dict.fromkeys(names))


def _enter(patch: Patch) -> None:
    """The rows of a patch before anything is known: waiting, or skipped by the settings."""
    skipped = catalogue.is_skipped(patch.id, settings.current().skip)
    for target in dict.fromkeys(str(variant.target) for variant in patch.variants):
        ledger.record(
            patch.id,
            target,
            package=patch.package,
            state=ledger.SKIPPED if skipped else ledger.WAITING,
            reason="the setting skip names it" if skipped else "%s is not imported yet" % patch.package,
        )


def _module_ready(name: str) -> None:
    """The hook: apply whatever has its target in module ``name``."""
    with _lock:
        if not _enabled:
            return
        for patch in catalogue.load():
            targets = {str(v.target): v.target for v in patch.variants if name in v.target.modules}
            for key in targets:
                if (patch.id, key) not in _in_place:
                    _apply(patch, key, name)


def _apply(patch: Patch, target: str, module_name: str) -> None:
    """Apply one patch at one target; every outcome goes to the ledger."""
    if catalogue.is_skipped(patch.id, settings.current().skip):
        return
    version = versions.imported_version(patch.package)
    facts = {"version": version or "unknown", "shown_target": _shown(target, module_name)}
    try:
        variant = _variant(patch, target, version)
        reason = patch.condition() if patch.condition is not None else None
        if variant is None:
            ledger.record(patch.id, target, state=ledger.SKIPPED, verdict=versions.ABSENT,
                          reason="there is no variant for %s %s" % (patch.package, version), **facts)  # fmt: skip
            return
        if reason:
            ledger.record(patch.id, target, state=ledger.SKIPPED, reason=reason, **facts)
            return
        owner, name, original = apply.find(sys.modules[module_name], variant.target.attribute)
        verdict, reason = versions.verdict(patch, variant, version, original)
        if verdict in (versions.CHANGED, versions.FIXED):
            ledger.record(patch.id, target, state=ledger.SKIPPED, verdict=verdict, reason=reason, **facts)
            return
        function = apply.dress(variant.build(original), original, patch.id)
        replacement = apply.Replacement(original, function, owner, name)
        replacement.install()
        _in_place[(patch.id, target)] = replacement
        ledger.record(patch.id, target, state=ledger.APPLIED, verdict=verdict, reason=reason,
                      holders=replacement.holders, **facts)  # fmt: skip
    except apply.Absent as error:
        ledger.record(patch.id, target, state=ledger.SKIPPED, verdict=versions.ABSENT, reason=str(error), **facts)
    except Exception as error:  # never the user's import
        text = traceback.format_exc()
        ledger.record(patch.id, target, state=ledger.FAILED, reason=repr(error), traceback=text, **facts)
        if settings.current().strict:
            raise ledger.StrictError("%s cannot be applied to %s: %r" % (patch.id, target, error)) from error
        console.warn(
            "%s is not applied, %s stays as upstream wrote it: %r" % (patch.id, facts["shown_target"], error)
        )


def _variant(patch: Patch, target: str, version: Optional[str]) -> Optional[Variant]:
    fitting = [v for v in versions.variants_for(patch, version) if str(v.target) == target]
    return fitting[0] if fitting else None


def _shown(target: str, module_name: str) -> str:
    return "%s:%s" % (module_name, target.partition(":")[2])


def _report_problems(problems: List[str]) -> None:
    """Say once per job, not once per process, what is wrong with the settings."""
    mark = settings.PREFIX + "WARNED"
    text = "\n".join(problems)
    if not problems or os.environ.get(mark) == text or os.environ.get("RANK", "0") not in ("", "0", "-1"):
        return
    os.environ[mark] = text
    for problem in problems:
        console.warn(problem)
