"""The lock file for which a rank waits while another process builds a C++ or CUDA extension of torch's."""

from __future__ import annotations

import os
import time
from types import FrameType
from typing import Optional

from ... import settings


def detail(frame: Optional[FrameType]) -> str:
    """``the lock /home/me/.cache/…/lock, made 3h ago``; empty if it cannot be told.

    ``frame``: the innermost one of a thread in torch's FileBaton; its names may change.
    """
    while frame is not None:
        path = getattr(frame.f_locals.get("self"), "lock_file_path", None)
        if isinstance(path, str):
            try:
                age = max(0.0, time.time() - os.stat(path).st_mtime)
            except OSError:
                return "the lock %s, which is gone by now" % path
            return "the lock %s, made %s ago" % (path, settings.format_duration(round(age)))
        frame = frame.f_back
    return ""
