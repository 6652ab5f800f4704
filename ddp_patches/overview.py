"""``ddp_patches.status()``: what was done to this process, under which settings and limits.

The command ``ddp-patches status`` shows the same object for what is installed (:func:`before_a_run`) and
for a job that ran or runs (:mod:`ddp_patches.overview_job`). None of the three imports torch.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from . import _finder, settings
from .engine import apply, catalogue, ledger, versions
from .engine.patch import Patch
from .inspection import surroundings
from .runtime import identity

# Of the states of one patch on several ranks, the one that matters most to who reads it.
_WORST_FIRST = (ledger.FAILED, ledger.SKIPPED, ledger.WAITING, ledger.APPLIED)
# How the engine and the forecast begin the reason of a target that belongs to other releases.
_NO_VARIANT = "there is no variant for "


@dataclasses.dataclass
class PatchRow:
    """One patch at one target.

    ``state`` is ``applied``, ``waiting``, ``skipped`` or ``failed``, with a ``reason`` in every state.
    ``holders`` counts the places where upstream's function was replaced; ``unreachable`` names those
    where it could not be (closures, partials, class bodies). ``traceback`` is that of a failure.
    """

    id: str
    state: str
    verdict: str
    reason: str
    package: str
    version: str
    target: str
    holders: int = 0
    unreachable: List[str] = dataclasses.field(default_factory=list)
    call_failures: int = 0
    traceback: str = ""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> PatchRow:
        """From a row of a ledger; what is missing there is empty, what is unknown here is left out."""
        fields = {field.name: row[field.name] for field in dataclasses.fields(cls) if field.name in row}
        required = ("id", "state", "verdict", "reason", "package", "version", "target")
        return cls(**{**dict.fromkeys(required, ""), **fields})


@dataclasses.dataclass
class Status:
    """What :func:`status` returns; print it, or take :meth:`as_dict` for JSON.

    ``settings``: ``{name: {"value", "source", "text"}}``, durations in seconds, sources ``default``,
    ``environment`` and ``keyword``. ``ranks``: ``[{"rank", "local_rank", "host", "pid", "patches"}]``.
    ``run`` holds id, start, world size and launcher where the object tells of a whole job; ``packages``
    what is installed, where it tells of that.
    """

    patches: List[PatchRow]
    settings: Dict[str, Dict[str, Any]]
    limits: Dict[str, Any]
    ranks: List[Dict[str, Any]]
    packages: Dict[str, Dict[str, Any]] = dataclasses.field(default_factory=dict)
    warnings: List[Dict[str, str]] = dataclasses.field(default_factory=list)
    run: Dict[str, Any] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> Dict[str, Any]:
        """The object as JSON would hold it."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        from . import overview_text

        return overview_text.text(self)


def status() -> Status:
    """What ddp_patches did to this process, as one object; see :class:`Status`.

    For people and tests, not for a training loop: it looks through all objects of the process for holders
    of upstream's functions that cannot be reached, which takes up to some seconds beside a large framework.
    """
    loaded, problems = load_settings(os.environ, active=True)
    rows, broken = _own_rows()
    limits = surroundings.limits(os.environ, loaded)
    limits.update(_group_limits())
    rank = {
        **_rank(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "patches": [dataclasses.asdict(row) for row in rows],
    }
    warnings = [{"id": "setting", "message": problem, "advice": ""} for problem in problems] + broken
    return Status(rows, shown_settings(loaded), limits, [rank], warnings=warnings)


def before_a_run(environ: Mapping[str, str]) -> Status:
    """What would become of each patch with what is installed, and what may fail later."""
    from .inspection import forecast, hazards, installed

    loaded, problems = load_settings(environ)
    patches, broken = load_catalogue()
    names = list(dict.fromkeys([*installed.FRAMEWORKS, *(patch.package for patch in patches)]))
    packages = installed.find_all(names)
    rows = forecast.rows(patches, packages, loaded.settings, environ)
    checked = dataclasses.replace(loaded, problems=tuple(problems) + _unknown_skips(loaded))
    warnings = hazards.as_dicts(hazards.collect(environ, packages, checked))
    return Status(
        [PatchRow.of(row) for row in rows],
        shown_settings(loaded),
        surroundings.limits(environ, loaded),
        ranks=[],
        packages={name: dataclasses.asdict(packages[name]) for name in names if name in packages},
        warnings=warnings + broken,
    )


def by_patch(rows: Sequence[PatchRow]) -> Dict[str, str]:
    """One state for each patch id: the worst of its targets, without those of other releases.

    A target that still waits beside one that is applied does not count: its module may never be imported.
    """
    states: Dict[str, str] = {}
    for row in rows:
        if not is_meant(row, rows):
            continue
        known = states.setdefault(row.id, row.state)
        if row.state != ledger.WAITING and (known == ledger.WAITING or severity(row.state) < severity(known)):
            states[row.id] = row.state
    return states


def is_meant(row: PatchRow, rows: Sequence[PatchRow]) -> bool:
    """False for a target of other releases, where the patch has another target for the installed one."""
    if row.state != ledger.SKIPPED or not row.reason.startswith(_NO_VARIANT):
        return True
    return not any(other.id == row.id and not other.reason.startswith(_NO_VARIANT) for other in rows)


def severity(state: str) -> int:
    """A rank among states, the worst first; an unknown state counts as the worst."""
    return _WORST_FIRST.index(state) if state in _WORST_FIRST else 0


def load_settings(environ: Mapping[str, str], active: bool = False) -> Tuple[settings.Loaded, List[str]]:
    """The settings and what is wrong with them; never raises, also with ``strict``."""
    try:
        loaded = settings.active() if active else settings.load(environ)
        return loaded, list(loaded.problems)
    except settings.SettingError:
        lenient = {name: value for name, value in environ.items() if name != settings.variable("strict")}
        loaded = settings.load(lenient)
        return loaded, ["strict is on, and a job would stop here: " + text for text in loaded.problems]


def shown_settings(loaded: settings.Loaded) -> Dict[str, Dict[str, Any]]:
    """``{name: {"value", "source", "text"}}``: the value for programs (seconds), the text for people."""
    return {
        field.name: {
            "value": _plain(getattr(loaded.settings, field.name)),
            "source": loaded.sources[field.name],
            "text": (
                field.metadata["shown"]
                if loaded.sources[field.name] == "default"
                else settings.format_value(field.name, getattr(loaded.settings, field.name))
            ),
        }
        for field in dataclasses.fields(loaded.settings)
    }


def load_catalogue() -> Tuple[List[Patch], List[Dict[str, str]]]:
    """All patches, and a warning in place of those that cannot even be imported."""
    try:
        return catalogue.load(), []
    except Exception as error:
        message = "the patches cannot be loaded: %r" % (error,)
        return catalogue.load(), [{"id": "catalogue", "message": message, "advice": "reinstall ddp-patches"}]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _unknown_skips(loaded: settings.Loaded) -> Tuple[str, ...]:
    return tuple(catalogue.unknown_skips(loaded.settings.skip))


def _own_rows() -> Tuple[List[PatchRow], List[Dict[str, str]]]:
    """This process's ledger; where the engine is not on, every patch with the reason why it is not."""
    control = sys.modules.get("ddp_patches.engine.control")
    if control is not None and control.is_enabled():
        control.look_at_sources()
        control.look_for_losses()
        rows = [PatchRow.of(row.as_dict()) for row in ledger.rows()]
        by_id = {patch.id: patch for patch in catalogue.load()}
        unreachable = _unreachable(control.all_replacements())
        for row in rows:
            if row.state == ledger.APPLIED:
                row.unreachable = unreachable.get((row.id, row.target), [])
            elif row.state == ledger.WAITING and row.id in by_id:
                _say_what_is_awaited(row, by_id[row.id])
        return rows, []
    state, reason = _why_not_on()
    patches, broken = load_catalogue()
    rows = [
        PatchRow(patch.id, state, "", reason, patch.package, "", target)
        for patch in patches
        for target in dict.fromkeys(str(variant.target) for variant in patch.variants)
    ]
    return rows, broken


def _say_what_is_awaited(row: PatchRow, patch: Patch) -> None:
    """Beside an imported package only the target's module is missing, or this release does not have it."""
    from .inspection import source

    version = versions.imported_version(row.package)
    if version is None:
        return
    row.version = version
    if any(str(variant.target) == row.target for variant in versions.variants_for(patch, version)):
        modules = row.target.partition(":")[0].split("|")
        absences = [source.why_absent(module) for module in modules]
        row.reason = "%s is not imported yet" % " or ".join(modules)
        if all(absences):  # still waiting all the same: somebody may yet make such a module
            row.verdict, row.reason = versions.ABSENT, "; ".join(dict.fromkeys(absences))
    else:
        row.state, row.verdict = ledger.SKIPPED, versions.ABSENT
        row.reason = "%s%s %s" % (_NO_VARIANT, row.package, version)


def _why_not_on() -> Tuple[str, str]:
    if settings.is_off(os.environ):
        return ledger.SKIPPED, "%s=%s turns everything off" % (settings.SWITCH, os.environ[settings.SWITCH])
    if _finder._engine_started:
        return ledger.SKIPPED, "the engine could not start; the reason is on standard error"
    if _finder.is_waiting():
        return ledger.WAITING, "torch is not imported yet"
    return ledger.SKIPPED, "ddp_patches is not enabled in this process"


def _unreachable(placed: Mapping[str, Sequence[apply.Replacement]]) -> Dict[Tuple[str, str], List[str]]:
    """Who still holds upstream's function, by patch id and target."""
    keys = [(patch_id, each.place) for patch_id, several in placed.items() for each in several]
    found = apply.unreachable_holders([each for several in placed.values() for each in several])
    return dict(zip(keys, found))


def _rank() -> Dict[str, Any]:
    """From torch where a group exists, else from the launcher's variables."""
    found = {"rank": identity.rank_of(os.environ), "local_rank": identity.local_rank_of(os.environ)}
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            found["rank"] = distributed.get_rank()
    except Exception:  # half imported, say
        pass
    return found


def _group_limits() -> Dict[str, Any]:
    """``groups``: the effective timeouts of this process's groups and who set them; ``changes`` made."""
    module = sys.modules.get("ddp_patches.runtime.limits")  # where nothing imported it, no group was made
    snapshot = module.snapshot() if module is not None else {}
    return {"groups": snapshot.get("groups", []), "changes": snapshot.get("changes", [])}
