"""The stack of a DataLoader worker, asked for by the rank that waits for it.

A worker that has died or is inside a C call cannot be asked politely. So every child of a rank prepares
itself, when it is forked or has imported torch: when one real-time signal comes, ``faulthandler`` writes the
stack into a file in memory that only this process and its parent can reach. The rank sends that signal only
to a process that handles it at that moment: anything else would die of it.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import time
from typing import Any, List, Optional

from ... import parsers, settings
from ..stacks import Place

_NAME = "ddp_patches stack"
_ANSWER_SECONDS = 0.5
_LONGEST_ANSWER = 64 * 1024  # bytes
_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)

_file: Optional[int] = None  # kept open for as long as this process lives
_prepares_children = False


def signal_number() -> int:
    """Of the setting ``stack_signal``; 0 where it is off or there are no real-time signals."""
    return parsers.signal_number(settings.current().stack_signal) if hasattr(signal, "SIGRTMIN") else 0


def prepare_children() -> None:
    """Have the processes that this one forks from now on answer."""
    global _prepares_children
    if not _prepares_children and _is_possible():
        _prepares_children = True
        os.register_at_fork(after_in_child=prepare)


def prepare_child() -> None:
    """For a process that was spawned, by a rank perhaps, or that is or comes from a fork server."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return
    # It knows the parent only when it has unpickled the work, which is what imports torch.
    is_beginning = getattr(multiprocessing.current_process(), "_inheriting", False)
    if (is_beginning or multiprocessing.parent_process() is not None) and _is_possible():
        prepare()
        prepare_children()


def prepare() -> None:
    """Answer from now on."""
    global _file
    try:
        if signal.getsignal(signal_number()) is not signal.SIG_DFL:
            return  # somebody else's
        inherited, _file = _file, os.memfd_create(_NAME)
        faulthandler.register(signal_number(), file=_file, all_threads=False, chain=False)
        if inherited is not None:  # a rank of mp.spawn is itself a child that has prepared
            os.close(inherited)  # or who asks would look into that one
    except Exception:  # a worker is not to fail for the sake of a report
        pass


def _is_possible() -> bool:
    return bool(signal_number()) and hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


def of(pid: int) -> List[Place]:
    """A child's main thread, innermost frame first; empty if it cannot be had. At most half a second."""
    if not _is_possible():
        return []
    try:
        with _Process(pid) as process:
            path = _answer_file(pid)
            if path is None or not _is_child(pid) or not _handles_signal(pid):
                return []
            before = os.stat(path).st_size
            process.send()
            return _parsed(_read(path, before))
    except (OSError, ValueError):
        return []


class _Process:
    """A process by a handle that is not passed on when its number is used again, where Python has such."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._handle: Any = None

    def __enter__(self) -> _Process:
        if hasattr(os, "pidfd_open"):  # Python 3.9
            self._handle = os.pidfd_open(self._pid)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            os.close(self._handle)

    def send(self) -> None:
        if self._handle is not None:
            signal.pidfd_send_signal(self._handle, signal_number())
        else:
            os.kill(self._pid, signal_number())


def _answer_file(pid: int) -> Optional[str]:
    folder = "/proc/%d/fd" % pid
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            if os.readlink(path).startswith("/memfd:" + _NAME):
                return path
        except OSError:  # closed meanwhile
            continue
    return None


def _is_child(pid: int) -> bool:
    """Of this process, or of a fork server that this process has started."""
    parent = _parent(pid)
    return parent == os.getpid() or _parent(parent) == os.getpid()


def _parent(pid: int) -> int:
    with open("/proc/%d/stat" % pid) as file:
        return int(file.read().rpartition(")")[2].split()[1])


def _handles_signal(pid: int) -> bool:
    with open("/proc/%d/status" % pid) as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal_number() - 1) & 1)
    return False


def _read(path: str, start: int) -> str:
    deadline, size = time.monotonic() + _ANSWER_SECONDS, start
    while time.monotonic() < deadline:
        time.sleep(0.05)
        now = os.stat(path).st_size
        if now > start and now == size:
            break
        size = now
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(_LONGEST_ANSWER).decode("utf-8", "replace")


def _parsed(text: str) -> List[Place]:
    return [(file, int(line), function) for file, line, function in _LINE.findall(text)]
