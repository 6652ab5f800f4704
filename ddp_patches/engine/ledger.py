"""What was done to this process, and why: one row per patch and target, with a reason in every state."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
import traceback
from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar

from .. import console, handlers, settings

WAITING, APPLIED, SKIPPED, FAILED = "waiting", "applied", "skipped", "failed"

Result = TypeVar("Result")


@dataclasses.dataclass
class Row:
    """One patch at one target. ``target`` names the module that was really patched, once it is known."""

    id: str
    package: str
    target: str
    state: str = WAITING
    verdict: str = ""
    reason: str = ""
    version: str = ""
    holders: int = 0
    traceback: str = ""
    call_failures: int = 0
    at: float = 0.0

    def as_dict(self) -> Dict[str, Any]:
        """The row as JSON would hold it."""
        return dataclasses.asdict(self)


class StrictError(RuntimeError):
    """A patch failed, and ``strict`` is on."""

    strict = True  # the finder, which must not import this module, looks for the attribute


# The engine's only lock. It is held for moments and never while code of others runs: a hook takes it
# inside an import, where waiting for a thread that itself waits for that import would never end.
lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    # Or a child that is forked in such a moment, a loader's worker say, would wait for a lost thread.
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)

_rows: Dict[Tuple[str, str], Row] = {}
_revision = 0


def record(patch_id: str, target: str, **changes: Any) -> None:
    """Change the row of a patch at a target. With ``package`` among the changes a missing row is created.

    Without it nothing happens: a replacement that is still running has outlived ``disable()``.
    """
    global _revision
    with lock:
        row = _rows.get((patch_id, target))
        if row is None and "package" in changes:
            row = _rows[(patch_id, target)] = Row(patch_id, changes["package"], target)
        if row is None:
            return
        row.target = changes.pop("shown_target", row.target)
        for name, value in changes.items():
            setattr(row, name, value)
        row.at = time.time()
        _revision += 1


def row(patch_id: str, target: str) -> Optional[Row]:
    """A copy of the row for the patch at the target as it was declared, or None."""
    with lock:
        found = _rows.get((patch_id, target))
        return dataclasses.replace(found) if found is not None else None


def correct(patch_id: str, target: str, seen: Row, **changes: Any) -> None:
    """Change a row, unless somebody else has since it was ``seen``, or a call has failed."""
    with lock:
        if not seen.call_failures and row(patch_id, target) == seen:
            record(patch_id, target, **changes)


def rows() -> List[Row]:
    """Copies of all rows, in the order of the catalogue."""
    with lock:
        return [dataclasses.replace(row) for row in _rows.values()]


def revision() -> int:
    """A number that grows with every change."""
    return _revision


def has(patch_id: str, target: str) -> bool:
    """Whether there is a row for the patch at the target as it was declared."""
    with lock:
        return (patch_id, target) in _rows


def clear() -> None:
    """Forget all rows."""
    global _revision
    with lock:
        _rows.clear()
        _revision += 1


def attempt(patch_id: str, function: Callable[[], Result], default: Result) -> Result:
    """Our own part of a patched call: a failure of ours is recorded, and ``default`` taken instead.

    Whatever ``function`` does must leave upstream's work undone, so that the caller can hand over to
    the original afterwards, once. With ``strict`` the failure is raised, and so is always what a signal
    handler of the program's has raised meanwhile.
    """
    try:
        return function()
    except Exception as error:
        if handlers.has_raised(error):
            raise
        note_failure(patch_id, error)
        if settings.current().strict:
            raise
        return default


def note_failure(patch_id: str, error: BaseException) -> None:
    """Write a failure at call time into the rows of the patch; the first one also goes to the log."""
    global _revision
    summary, text = describe(error)
    first = False
    with lock:
        for row in _rows.values():
            if row.id == patch_id and row.state == APPLIED:
                first = first or not row.call_failures
                row.call_failures += 1
                row.reason = "failed when called, upstream's code ran instead: %s" % summary
                row.traceback = text
        _revision += 1
    if first:
        console.warn_once(
            "%s failed when called and left the work to upstream: %s "
            "(the traceback is in ddp_patches.status())" % (patch_id, summary)
        )


def describe(error: BaseException) -> Tuple[str, str]:
    """An exception as one line and with its traceback; never raises, whatever its ``__str__`` does."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return " ".join(traceback.format_exception_only(type(error), error)[-1].split()), "".join(lines)


def find(patch_id: str) -> Optional[Row]:
    """The first row of a patch, or None."""
    return next((row for row in rows() if row.id == patch_id), None)
