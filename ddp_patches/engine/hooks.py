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
    module = sys.modules.get(name)
    if module is None:
        _register(name, callback)
    elif not _finder.is_being_imported(module):
        callback(name)
    elif not _finder.when_finished(module.__spec__, lambda: _after_import(name, callback)):
        callback(name)  # a foreign spec that cannot be watched: as much as there is by now


def _register(name: str, callback: Callable[[str], None]) -> None:
    if name not in _registered:
        _registered.add(name)
        wrapt.register_post_import_hook(lambda module: callback(name), name)


def _after_import(name: str, callback: Callable[[str], None]) -> None:
    if name in sys.modules:
        callback(name)
    else:  # that import failed; the next attempt starts from the beginning
        _register(name, callback)
