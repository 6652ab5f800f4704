"""All patches there are, in the order in which they are applied."""

from __future__ import annotations

import fnmatch
import importlib
import os
import pkgutil
from typing import Dict, List, Tuple

from .patch import Patch

_HOME = "ddp_patches.patches"
# The stand-ins of a rehearsal are patches too, but only a process that a rehearsal started may see them.
_REHEARSAL_HOME, _REHEARSAL_VARIABLE = "ddp_patches.rehearse", "DDP_PATCHES_REHEARSAL"

_patches: Dict[str, Patch] = {}
_loaded = False


def register(entry: Patch) -> None:
    """Enter a patch. Raises ValueError if its id is taken."""
    if entry.id in _patches:
        raise ValueError("there is a patch %r already" % entry.id)
    _patches[entry.id] = entry


def load() -> List[Patch]:
    """All patches; imports the modules below ``ddp_patches.patches`` the first time. Imports no target."""
    global _loaded
    if not _loaded:
        _loaded = True
        _import_below(_HOME)
        if os.environ.get(_REHEARSAL_VARIABLE):
            importlib.import_module(_REHEARSAL_HOME).register()
    return list(_patches.values())


def _import_below(package: str) -> None:
    module = importlib.import_module(package)
    for entry in sorted(pkgutil.iter_modules(module.__path__), key=lambda entry: entry.name):
        name = "%s.%s" % (package, entry.name)
        if entry.ispkg:
            _import_below(name)
        else:
            importlib.import_module(name)


def is_skipped(patch_id: str, skip: Tuple[str, ...]) -> bool:
    """Whether one of the ids or globs in ``skip`` names this patch."""
    return any(fnmatch.fnmatchcase(patch_id, pattern) for pattern in skip)


def unknown_skips(skip: Tuple[str, ...]) -> List[str]:
    """One sentence for each entry of ``skip`` that names no patch."""
    import difflib

    sentences = []
    for pattern in skip:
        if not any(fnmatch.fnmatchcase(patch_id, pattern) for patch_id in _patches):
            close = difflib.get_close_matches(pattern, _patches, n=1)
            hint = "did you mean %s?" % close[0] if close else "`ddp-patches list` shows all ids."
            sentences.append("skip names no patch: %r; %s" % (pattern, hint))
    return sentences
