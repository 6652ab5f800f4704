"""The rehearsal: a multi-GPU command as CPU processes over gloo, started by ``ddp-patches rehearse`` alone.

The stand-ins are patches like all others, entered last and so wrapped around the others: what those decide,
they decide about gloo and CPU. Everything that is not stood in for is the framework's own path, its relaunch
included.
"""

from __future__ import annotations

import importlib
import logging
import os

from .. import _finder, console
from . import permit

# In the order of the catalogue. Imported only under a valid permit: each enters its patches when imported.
_STAND_INS = ("cuda", "gloo", "openmmlab", "ultralytics", "yolov5")

LINE_MARK = "REHEARSAL"


def register() -> None:
    """Enter the stand-ins into the catalogue, if this process belongs to a rehearsal that is running.

    Else one line says why not, and the process runs as usual.
    """
    reason = permit.obstacle(os.environ)
    _finder.trace("rehearsal: %s" % (reason or "stand-ins are entered"))
    if reason:
        if os.environ.get("RANK", "0") in ("", "0", "-1"):
            console.warn(f"{permit.VARIABLE} is set, but {reason}: nothing is rehearsed here")
        return
    console.logger().addFilter(_mark_line)
    for name in _STAND_INS:
        importlib.import_module(f"{__name__}.{name}")


def _mark_line(record: logging.LogRecord) -> bool:
    """Every line of ours says REHEARSAL, so that no log of one passes for a real job's."""
    record.msg, record.args = f"{LINE_MARK} {record.getMessage()}", ()
    return True
