"""Which DataLoader worker a rank waits for, and what that process is doing."""

from __future__ import annotations

import os
from types import FrameType
from typing import Any, Optional

from .. import stacks
from . import worker_stacks


def worker(frame: Optional[FrameType]) -> str:
    """``its DataLoader worker 4711, which computes``; empty if it cannot be told.

    ``frame``: the innermost one of a thread that waits in torch's DataLoader. What is read there are
    names of torch's own, which may change: then the answer is empty.
    """
    while frame is not None:
        if frame.f_code.co_filename.replace(os.sep, "/").endswith("torch/utils/data/dataloader.py"):
            process = _awaited(frame.f_locals.get("self"))
            if process is not None:
                return "its DataLoader worker %d, which %s" % (process, doing(process) + _where(process))
        frame = frame.f_back
    return ""


def _where(pid: int) -> str:
    stack = worker_stacks.of(pid)
    return " at %s" % stacks.describe(stacks.telling(stack)) if stack else ""


def _awaited(iterator: Any) -> Optional[int]:
    try:
        if not iterator._workers:
            return None
        task = iterator._task_info.get(iterator._rcvd_idx)
        return int(iterator._workers[task[0] if task else 0].pid)
    except (AttributeError, IndexError, TypeError, KeyError, ValueError):
        return None


def doing(pid: int) -> str:
    """What a process does, by its state in /proc: ``computes``, ``sleeps or waits``, ``is gone`` …"""
    try:
        with open("/proc/%d/stat" % pid) as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "is gone" if os.path.isdir("/proc/self") else "is alive or not, which cannot be told here"
    return {
        "R": "computes", "S": "sleeps or waits", "D": "waits for a disk or a network drive",
        "T": "is stopped", "t": "is stopped", "Z": "has ended",
    }.get(state, "is in state %s" % state)  # fmt: skip
