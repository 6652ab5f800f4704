"""Turning the catalogue on and off in this process."""

from __future__ import annotations

import functools
import sys
from typing import Any, Dict, List, Optional, Tuple

from .. import _finder, console, settings
from . import apply, catalogue, fingerprint, hooks, ledger, versions
from .patch import Patch, Variant

_enabled_with: Optional[settings.Settings] = None  # None: off
_in_place: Dict[Tuple[str, str], apply.Replacement] = {}  # (patch id, target), in the order of applying


def enable_from_active_settings() -> None:
    """Apply what can be applied now and wait for the modules of the rest.

    May be called again: with other settings everything is taken out and put in anew, with the same ones
    only patches are added that were declared since. Raises StrictError where ``strict`` is on and a
    patch cannot be applied; nothing is applied then.
    """
    global _enabled_with
    loaded = settings.active()
    settings.activate(loaded)
    patches = catalogue.load()
    with ledger.lock:
        if _enabled_with not in (None, loaded.settings):
            disable()
        _enabled_with = loaded.settings
        for patch in patches:
            _enter(patch, loaded.settings.skip)
    for problem in [*loaded.problems, *catalogue.unknown_skips(loaded.settings.skip)]:
        console.warn_once(problem)
    try:
        for name in _module_names(patches):
            hooks.when_imported(name, _module_ready)
    except ledger.StrictError:
        disable()
        raise


def disable() -> None:
    """Take all replacements out again, last first, and forget the ledger."""
    global _enabled_with
    with ledger.lock:
        _enabled_with = None
        while _in_place:
            _, replacement = _in_place.popitem()
            replacement.remove()
        ledger.clear()


def is_enabled() -> bool:
    """Whether the engine is on in this process."""
    return _enabled_with is not None


def replacements(patch_id: str) -> List[apply.Replacement]:
    """What is in place of a patch."""
    with ledger.lock:
        return [replacement for (name, _), replacement in _in_place.items() if name == patch_id]


def all_replacements() -> Dict[str, List[apply.Replacement]]:
    """What is in place, by patch id."""
    with ledger.lock:
        return {patch_id: replacements(patch_id) for patch_id, _ in _in_place}


def look_at_sources() -> None:
    """Let the verdicts take the targets' source files into account, before they are shown to anybody.

    Takes up to some tenths of a second: see :mod:`ddp_patches.engine.versions`.
    """
    for patch in catalogue.load():
        version = versions.imported_version(patch.package)
        for variant in versions.variants_for(patch, version):
            row = ledger.row(patch.id, str(variant.target))
            if row is not None and row.verdict in versions.FROM_THE_TARGET:
                _judge_again(patch, variant, version, row)


def _judge_again(patch: Patch, variant: Variant, version: Optional[str], row: ledger.Row) -> None:
    target = str(variant.target)
    module_name, _, attribute = row.target.partition(":")
    module = sys.modules.get(module_name)
    source = fingerprint.of_file(getattr(module, "__file__", None), attribute)
    if module is None or source is None:
        return
    with ledger.lock:
        replacement = _in_place.get((patch.id, target))
    try:
        original = replacement.original if replacement is not None else apply.find(module, attribute)[2]
    except apply.Absent:
        return
    verdict, reason = versions.verdict(patch, variant, version, original, source)
    if row.reason != versions.verdict(patch, variant, version, original)[1]:
        reason = row.reason  # the patch has told what it did since
    ledger.correct(patch.id, target, row, verdict=verdict, reason=reason)


def look_for_losses() -> None:
    """Say in the ledger where a target no longer leads to our function, before it is shown to anybody."""
    with ledger.lock:
        for (patch_id, target), replacement in _in_place.items():
            if not replacement.is_reached():
                reason = "%s has been replaced since, by a reload or by other code" % replacement.place
                ledger.record(patch_id, target, reason=reason)


def _module_names(patches: List[Patch]) -> List[str]:
    names = [module for p in patches for variant in p.variants for module in variant.target.modules]
    return list(dict.fromkeys(names))


def _enter(patch: Patch, skip: Tuple[str, ...]) -> None:
    """The rows of a patch before anything is known: waiting, or skipped by the settings."""
    skipped = catalogue.is_skipped(patch.id, skip)
    for target in dict.fromkeys(str(variant.target) for variant in patch.variants):
        if not ledger.has(patch.id, target):
            ledger.record(
                patch.id,
                target,
                package=patch.package,
                state=ledger.SKIPPED if skipped else ledger.WAITING,
                reason="the setting skip names it" if skipped else "%s is not imported yet" % patch.package,
            )


def _module_ready(name: str) -> None:
    """The hook: apply whatever has its target in module ``name``."""
    if sys.modules.get(name) is None:
        return
    for patch in catalogue.load():
        for target in dict.fromkeys(str(v.target) for v in patch.variants if name in v.target.modules):
            if _is_wanted(patch, target):
                _apply(patch, target, "%s:%s" % (name, target.partition(":")[2]))


def _is_wanted(patch: Patch, target: str) -> bool:
    with ledger.lock:
        enabled_with = _enabled_with
        return (
            enabled_with is not None
            and not catalogue.is_skipped(patch.id, enabled_with.skip)
            and (patch.id, target) not in _in_place
        )


def _apply(patch: Patch, target: str, place: str) -> None:
    """Apply one patch at one target; every outcome goes to the ledger."""
    outcome: Dict[str, Any] = {"shown_target": place, "traceback": ""}
    failure = None
    try:
        version = versions.imported_version(patch.package)
        if version is None and _is_delayed(patch.package, place):
            return
        outcome["version"] = version or "unknown"
        settled = False
        while not settled:  # again, if another thread has patched the same target meanwhile
            outcome["verdict"], outcome["reason"], replacement = _prepare(patch, target, place, version)
            outcome["state"] = ledger.APPLIED if replacement is not None else ledger.SKIPPED
            settled = _settle(patch, target, replacement, outcome)
    except Exception as error:  # never the user's import
        failure = error
        summary, text = ledger.describe(error)
        outcome.update(state=ledger.FAILED, verdict="", reason=summary, traceback=text)
        _settle(patch, target, None, outcome)
        console.warn_once("%s is not applied, %s stays as upstream wrote it: %s" % (patch.id, place, summary))
    strict = _enabled_with is not None and _enabled_with.strict
    if strict and (failure is not None or outcome["verdict"] == versions.CHANGED):
        message = "%s cannot be applied to %s: %s" % (patch.id, place, outcome["reason"])
        raise ledger.StrictError(message) from failure


def _is_delayed(package: str, place: str) -> bool:
    """Whether a package that has no version yet is still being imported: some learn it in their last line."""
    module = sys.modules.get(package)
    again = functools.partial(_module_ready, place.partition(":")[0])
    return _finder.is_being_imported(module) and _finder.when_finished(_finder.spec_of(module), again)


def _prepare(
    patch: Patch, target: str, place: str, version: Optional[str]
) -> Tuple[str, str, Optional[apply.Replacement]]:
    """Verdict, reason, and what to put in; None to leave upstream alone. Raises whatever the patch raises."""
    fitting = [v for v in versions.variants_for(patch, version) if str(v.target) == target]
    if not fitting:
        return versions.ABSENT, "there is no variant for %s %s" % (patch.package, version), None
    obstacle = patch.condition() if patch.condition is not None else None
    if obstacle:
        return "", obstacle, None
    module_name, _, attribute = place.partition(":")
    try:
        owner, name, original = apply.find(sys.modules[module_name], attribute)
    except apply.Absent as error:
        return versions.ABSENT, str(error), None
    strange = fitting[0].stranger(original) if fitting[0].stranger is not None else None
    if strange:
        return versions.ABSENT, strange, None
    verdict, reason = versions.verdict(patch, fitting[0], version, original)
    if verdict in (versions.CHANGED, versions.FIXED):
        return verdict, reason, None
    function = apply.dress(fitting[0].build(original), original, patch.id)
    return verdict, reason, apply.Replacement(original, function, owner, name, place)


def _settle(
    patch: Patch, target: str, replacement: Optional[apply.Replacement], outcome: Dict[str, Any]
) -> bool:
    """Put the replacement in and write the row, unless that is no longer wanted.

    False, with nothing done, if another thread has patched the same target since ``outcome`` was found.
    """
    with ledger.lock:
        if not _is_wanted(patch, target):
            return True
        if replacement is not None:
            module_name, _, attribute = replacement.place.partition(":")
            if apply.find(sys.modules[module_name], attribute)[2] is not replacement.original:
                return False
            replacement.install()
            _in_place[(patch.id, target)] = replacement
            outcome["holders"] = replacement.holders
        ledger.record(patch.id, target, **outcome)
        return True
