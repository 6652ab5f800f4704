"""Processes by pid and start time: who is still there, who belongs to a launch, and the end of those.

Nothing is looked for by its name or command line, and nothing is ended that was not recorded as a descendant
while its parents were alive. Needs ``/proc``; elsewhere nothing is found and nothing is ended.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Dict, Iterable, List, NamedTuple, Sequence, Tuple

from . import identity

# In which a loader worker notices that its rank is gone. torch.utils.data looks every 5 seconds.
LOADER_SECONDS = 6.0
_POLL_SECONDS = 0.1
_KILL_SECONDS = 2.0  # in which a killed process has ended, unless a device keeps it


class Process(NamedTuple):
    """``started``: clock ticks since boot, which tell a process from a later one with the same pid."""

    pid: int
    started: str

    def is_alive(self) -> bool:
        """Whether it runs; True where that cannot be known."""
        return not identity.has_died(self.pid, self.started)

    def send(self, number: int) -> bool:
        """Send a signal, unless the process is gone; returns whether it was sent."""
        if not self.started or not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def this_process() -> Process:
    """The process that asks."""
    return Process(os.getpid(), identity.start_time(os.getpid()))


def of_launcher(launcher: int) -> List[Process]:
    """The ranks that a launcher has started, and what they have started: loader workers, say.

    A process below a rank that has made a session of its own (a logger's service, a daemon) wants to live
    longer than the rank, and is left out, as is everything below it.
    """
    table = _table()
    found: List[Process] = []
    for pid, (parent, session, started) in table.items():
        if parent == launcher:
            found.append(Process(pid, started))
            found += _below(pid, session, table)
    return found


def workers_of(children: Iterable[int]) -> List[Process]:
    """The processes of the same program that these children of this process have started: loader workers.

    Another program (an upload, a converter) may finish by itself. A number that is no longer one of the
    children has been given to somebody else.
    """
    table, this = _table(), os.getpid()
    own = [pid for pid in children if pid in table and table[pid][0] == this]
    return [found for pid in own for found in _workers(pid, table)]


def own_workers() -> List[Process]:
    """The same of this process."""
    table = _table()
    return _workers(os.getpid(), table) if os.getpid() in table else []


def _workers(pid: int, table: Dict[int, Tuple[int, int, str]]) -> List[Process]:
    program = _program(pid)
    return [found for found in _below(pid, table[pid][1], table) if _program(found.pid) == program != ""]


def _program(pid: int) -> str:
    try:
        return os.readlink("/proc/%d/exe" % pid)
    except OSError:  # it has ended, or is somebody else's
        return ""


def end(processes: Sequence[Process], patience: float) -> List[Process]:
    """Wait ``patience`` seconds for the processes to end by themselves, then end the rest; returns it."""
    if _are_gone(processes, patience):
        return []
    killed = [process for process in processes if process.send(signal.SIGKILL)]
    _are_gone(killed, _KILL_SECONDS)
    return killed


def _are_gone(processes: Sequence[Process], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while any(process.is_alive() for process in processes):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _below(pid: int, session: int, table: Dict[int, Tuple[int, int, str]]) -> List[Process]:
    found: List[Process] = []
    for child, (parent, own_session, started) in table.items():
        if parent == pid and own_session == session:
            found.append(Process(child, started))
            found += _below(child, session, table)
    return found


def _table() -> Dict[int, Tuple[int, int, str]]:
    """Parent, session and start time of each process that can be seen, by pid."""
    table = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    for name in filter(str.isdecimal, names):
        try:
            with open("/proc/%s/stat" % name, "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        table[int(name)] = (int(fields[1]), int(fields[3]), fields[19].decode())
    return table
