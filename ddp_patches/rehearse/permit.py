"""Who may rehearse: processes that a running ``ddp-patches rehearse`` has started, and nobody else.

The permit is an environment variable, which all descendants inherit. It names the process that gave it, so
that one which has been left behind (a terminal multiplexer started in a rehearsal, a batch system that hands
the whole environment on) does nothing.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Mapping

from ..runtime import identity

VARIABLE = "DDP_PATCHES_REHEARSAL"


@dataclasses.dataclass(frozen=True)
class Permit:
    """``ranks``: how many devices there seem to be. The others name the process that gave the permit."""

    ranks: int
    giver: int
    started: str
    node: str

    def encode(self) -> str:
        """The permit as the variable's value."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))


def give(ranks: int) -> Permit:
    """A permit of this process, which holds as long as this process lives."""
    pid = os.getpid()
    return Permit(ranks, pid, identity.start_time(pid), identity.node_key())


def decode(text: str) -> Permit | None:
    """The permit in ``text``, or None if there is none."""
    try:
        found = Permit(**json.loads(text))
    except (TypeError, ValueError):
        return None
    numbers = all(type(number) is int and number > 0 for number in (found.ranks, found.giver))
    return found if numbers and isinstance(found.started, str) and isinstance(found.node, str) else None


def current() -> Permit:
    """The permit of this process. Raises LookupError where there is none."""
    found = decode(os.environ.get(VARIABLE, ""))
    if found is None:
        raise LookupError(f"{VARIABLE} holds no permit")
    return found


def obstacle(environ: Mapping[str, str]) -> str:
    """Why the permit in ``environ`` does not hold for this process, or an empty string."""
    found = decode(environ.get(VARIABLE, ""))
    if found is None:
        return "its value is none of ours"
    if found.node != identity.node_key():
        return "it was given on another machine or in another container"
    if not _is_alive(found):
        return "the rehearsal that it belongs to has ended"
    ancestors = _ancestors(os.getpid())
    if ancestors is not None and found.giver not in ancestors:
        return "the rehearsal that it belongs to did not start this process"
    return ""


def _is_alive(found: Permit) -> bool:
    if found.started:
        return not identity.has_died(found.giver, found.started)
    # Without /proc. A signal 0 would end the process on Windows, where nothing is rehearsed.
    if os.name != "posix":
        return False
    try:
        os.kill(found.giver, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _ancestors(pid: int) -> list[int] | None:
    """``pid``, its parent and so on; None where that cannot be known."""
    line: list[int] = []
    while pid > 0 and pid not in line:
        line.append(pid)
        try:
            with open("/proc/%d/stat" % pid, "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            return line if os.path.isdir("/proc/self") else None
    return line
