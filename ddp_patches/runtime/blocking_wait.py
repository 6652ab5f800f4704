"""NCCL's blocking wait: whether it is on, who switched it on, and what takes its place.

Ultralytics exports it right before it makes the group. With it the CPU waits inside every
collective, and a rank-0-only phase that is longer than the limit ends the job. PyTorch's own advice
is asynchronous error handling, https://pytorch.org/docs/stable/distributed.html.
"""

from __future__ import annotations

import os
from typing import Dict, Mapping, MutableMapping, Optional

from . import limits

# NCCL_… until torch 2.1; from 2.2 TORCH_NCCL_…, the old one is still read there, with a warning.
_OLD, _NEW = "NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"
_OLD_ASYNC, _NEW_ASYNC = "NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def decide(
    setting: str,
    at_start: Mapping[str, str],
    now: Mapping[str, str],
    new_spelling: bool,
    async_by_default: bool,
) -> Dict[str, Optional[str]]:
    """Which variables to change, and to what (None: remove).

    Args:
        setting: ``auto``, ``0`` or ``1``.
        at_start: the environment with which the process was started; what stands there is the user's.
        now: the environment as the framework has left it.
        new_spelling: torch is 2.2 or newer.
        async_by_default: this torch handles errors asynchronously without being told, or its
            launcher (torchrun) tells it to.
    """
    changes: Dict[str, Optional[str]] = {}
    if setting == "1":
        name, other = (_NEW, _OLD) if new_spelling else (_OLD, _NEW)
        if now.get(name) != "1":
            changes[name] = "1"
        if other in now:
            changes[other] = None
        return changes
    if setting == "auto" and any(now.get(name) == "0" for name in (_OLD_ASYNC, _NEW_ASYNC)):
        return changes  # somebody has turned the other one off: this is the only limit that is left
    for name in (_OLD, _NEW):
        if now.get(name) not in (None, "0") and (setting == "0" or name not in at_start):
            changes[name] = None
    left_on = any(now.get(name) not in (None, "0") and name not in changes for name in (_OLD, _NEW))
    handled = async_by_default or any(name in now for name in (_OLD_ASYNC, _NEW_ASYNC))
    if changes and not left_on and not handled:
        # Without either, NCCL has no limit at all: a lost rank would never be noticed.
        changes[_NEW_ASYNC if new_spelling else _OLD_ASYNC] = "1"
    return changes


def settle(environ: MutableMapping[str, str], new_spelling: bool) -> Dict[str, Optional[str]]:
    """Carry the decision out in ``environ``, right before a group is made; returns the changes.

    ``new_spelling``: torch is 2.2 or newer.
    """
    from .. import settings

    changes = decide(
        settings.current().nccl_blocking_wait,
        exported_at_start(),
        environ,
        new_spelling=new_spelling,
        async_by_default=new_spelling or "TORCHELASTIC_RUN_ID" in environ,
    )
    for name, value in changes.items():
        if value is None:
            was = environ.pop(name)
            limits.note("%s=%s, set by the framework, was removed" % (name, was))
        else:
            environ[name] = value
            limits.note("%s was set to %s" % (name, value))
    return changes


def _environment_at_start() -> Mapping[str, str]:
    try:
        with open("/proc/self/environ", "rb") as file:
            raw = file.read()
    except OSError:
        return dict(os.environ)
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


# Read while torch is being imported: libraries that set the process's title write over that memory.
_at_start = _environment_at_start()


def exported_at_start() -> Mapping[str, str]:
    """The environment with which this process was started (where that is unknown: as we found it)."""
    return _at_start
