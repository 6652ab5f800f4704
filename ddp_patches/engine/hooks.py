"""Calls back when a module has been imported: now, when it finishes, or when somebody imports it."""

from __future__ import annotations

import sys
from typing import Callable, Set

import wrapt

from .. import _finder

_registered: Set[str] = set()  # wrapt cannot take a hook back: one for each name, and never a second


def when_imported(name: str, callback: Callable[[str], None]) -> None:
    """Call ``callback(name)`` once module ``name`` is complete; at once if it already is.

    ``callback`` must be the same function for every name and must bear being called again, since a
    hook outlives ``disable()``. It must not raise: it runs inside the user's import.
    """
    if sys.modules.get(name) is not None:
        _when_complete(name, callback)
    elif name not in _registered:
        _registered.add(name)
        wrapt.register_post_import_hook(lambda module: _when_complete(name, callback), name)


def _when_complete(name: str, callback: Callable[[str], None]) -> None:
    # A hook of wrapt runs before the import is over: when the module's code has run, or at once for a
    # module that is half imported, and in releases before 1.15 under wrapt's lock. So wrapt says that
    # there is a module, and its spec says when it is complete.
    spec = _finder.spec_of(sys.modules.get(name))
    running = bool(getattr(spec, "_initializing", False))
    if not (running and _finder.when_finished(spec, lambda: _after_import(name, callback))):
        callback(name)  # complete; or its spec is a foreign one that cannot be watched: as much as there is


def _after_import(name: str, callback: Callable[[str], None]) -> None:
    if sys.modules.get(name) is not None:
        callback(name)
        return
    # That import failed although the module's code had run. wrapt has forgotten the hook.
    _registered.discard(name)
    try:
        when_imported(name, callback)
    except KeyError:  # wrapt before 1.15 takes no second hook for a module that is not there
        _finder.trace("%s failed to import; it will not be patched" % name)
