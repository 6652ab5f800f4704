"""Since when a rank has not moved, how much of the CPU it uses, and whether somebody looks at it."""

from __future__ import annotations

import os
import sys
import time
from types import FrameType
from typing import Any, Dict, List, Mapping, Optional

from .. import stacks
from . import standing

_SUSPENDED_SECONDS = 15.0  # between two looks: the whole job, or the machine, was asleep
_SAMPLE_SECONDS = 0.5
_DEEPEST = 4  # generations of child processes
_DEBUGGER_FILES = ("pdb.py", "bdb.py", "pydevd.py")
_DEBUGGER_TOOL = 0  # of sys.monitoring, since Python 3.12


class Motion:
    """The rank's main thread, its counters and its CPU time, from one look to the next."""

    def __init__(self) -> None:
        now = time.monotonic()
        self._moved_at = self._looked_at = now
        self._spent = time.process_time()
        self._seen: Any = None
        self.standing = standing.classify([])
        self.counters: Mapping[str, int] = {}
        self.cpu = 0.0  # seconds per second since the last look

    def look(self, stack: List[stacks.Place], counters: Mapping[str, int]) -> bool:
        """Whether it has moved since the last look."""
        now, spent = time.monotonic(), time.process_time()
        gap = now - self._looked_at
        if gap > 0:
            self.cpu = (spent - self._spent) / gap
        self._looked_at, self._spent = now, spent
        self.counters = dict(counters)
        self.standing = standing.classify(stack)
        seen = _seen(stack, self.standing, counters)
        moved = bool(seen != self._seen) or gap > _SUSPENDED_SECONDS
        self._seen = seen
        if moved:
            self._moved_at = now
        return moved

    def idle(self) -> float:
        """Seconds since it moved, as far as the last look tells."""
        return time.monotonic() - self._moved_at

    def idle_at(self, stack: List[stacks.Place], counters: Mapping[str, int]) -> float:
        """Seconds since it moved, from any thread; ``stack`` and ``counters``: as they are now."""
        is_there = _seen(stack, standing.classify(stack), counters) == self._seen
        return self.idle() if is_there else 0.0


def _seen(stack: List[stacks.Place], found: standing.Standing, counters: Mapping[str, int]) -> Any:
    # Waits that poll (a loader's queue, a lock file) go back and forth in their innermost frames.
    outer = [(file, line) for file, line, _ in stack[found.frames :]]
    return found.kind, found.what, outer, dict(counters)


def debugger(frame: Optional[FrameType]) -> str:
    """Who looks at this process, ``""`` if nobody does: then it may stand still for as long as he likes.

    ``frame``: the innermost one of the main thread.
    """
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(_DEBUGGER_TOOL):
        return "a debugger"
    while frame is not None:
        if os.path.basename(frame.f_code.co_filename) in _DEBUGGER_FILES:
            return "a debugger"
        if frame.f_trace is not None:
            return "a trace function"
        frame = frame.f_back
    try:
        with open("/proc/self/status") as file:
            traced = any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in file)
    except OSError:
        return ""
    return "a debugger" if traced else ""


def children_cpu() -> float:
    """Seconds of CPU per second of all processes that this one has started; takes half a second.

    A rank that waits for a program which it has started (an evaluation, a conversion) does not stand still.
    """
    before = _times(os.getpid())
    if not before:
        return 0.0
    time.sleep(_SAMPLE_SECONDS)
    after = _times(os.getpid())
    spent = sum(max(0, after[pid] - before[pid]) for pid in before if pid in after)
    return spent / os.sysconf("SC_CLK_TCK") / _SAMPLE_SECONDS


def _times(pid: int, depth: int = 0) -> Dict[int, int]:
    """Clock ticks of the descendants by pid; empty where /proc does not tell."""
    found: Dict[int, int] = {}
    for child in _children(pid):
        try:
            with open("/proc/%d/stat" % child) as file:
                fields = file.read().rpartition(")")[2].split()
            found[child] = int(fields[11]) + int(fields[12])
        except (OSError, ValueError, IndexError):
            continue
        if depth < _DEEPEST:
            found.update(_times(child, depth + 1))
    return found


def _children(pid: int) -> List[int]:
    folder = "/proc/%d/task" % pid
    found: List[int] = []
    try:
        for thread in os.listdir(folder):
            with open("%s/%s/children" % (folder, thread)) as file:
                found += [int(child) for child in file.read().split()]
    except (OSError, ValueError):
        pass
    return found
