"""``enable()`` and ``disable()``: the door for code, and the way back."""

from __future__ import annotations

import os
import sys
from typing import Any

from . import _finder, settings


def enable(**keywords: Any) -> None:
    """Turn the patches on in this process and, unless ``propagate`` is off, in those that it starts.

    Keywords are the fields of :class:`ddp_patches.Settings` (``timeout="4h"``); they win over the
    ``DDP_PATCHES_…`` variables. A second call takes the new settings. Does nothing where
    ``DDP_PATCHES=0``. Raises TypeError for an unknown keyword. Where ``strict`` is on, raises
    SettingError for a value that cannot be understood and StrictError for a patch that cannot be
    applied to what is already imported, and nothing is on then; otherwise the default is used, or
    upstream's function, and one line says so.
    """
    if settings.is_off(os.environ):
        return
    loaded = settings.load(_finder.users_environment(), **keywords)
    _finder.restore_environment()
    settings.activate(loaded)
    if loaded.settings.propagate:
        given = {name: settings.encode(value) for name, value in keywords.items()}
        good = {name: text for name, text in given.items() if loaded.sources[name] == "keyword"}
        _finder.arm_children(good)
    else:
        _finder.disarm_children()
    try:
        _finder.start()
    except Exception:
        disable()
        raise


def disable() -> None:
    """Undo everything: patches, import hooks, the environment of child processes, the settings.

    Afterwards every module holds, by identity, what it held before. Process groups that were made
    meanwhile keep the timeout that they were made with.
    """
    _finder.stop()
    control = sys.modules.get("ddp_patches.engine.control")
    if control is not None:
        control.disable()
    _finder.disarm_children()
    settings.activate(None)
