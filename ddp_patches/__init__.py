"""Runtime patches that keep multi-GPU training from hanging, and say who is stuck when it does.

``import ddp_patches.auto`` as the first line of a script is all that most people need. From code::

    import ddp_patches
    ddp_patches.enable(timeout="4h")
    ddp_patches.status()
    ddp_patches.disable()

Importing this package loads nothing else: its names are looked up when they are first used, because
a Python that never trains must not pay for it.
"""

TYPE_CHECKING = False  # as in _finder.py; annotations are quoted, since even __future__ costs an import
if TYPE_CHECKING:
    from typing import Any

    from .engine.patch import patch
    from .overview import status
    from .runtime.stall.listeners import on_report
    from .settings import Settings
    from .switch import disable, enable

__version__ = "0.1.0"
__all__ = ["Settings", "__version__", "disable", "enable", "on_report", "patch", "status"]

_HOMES = {
    "enable": "switch",
    "disable": "switch",
    "status": "overview",
    "on_report": "runtime.stall.listeners",
    "Settings": "settings",
    "patch": "engine.patch",
}


def __getattr__(name: str) -> "Any":
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    import importlib

    value = getattr(importlib.import_module("." + home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> "Any":
    return sorted(set(globals()) | set(_HOMES))
