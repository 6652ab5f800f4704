"""The connections that this process's groups have made to the other ranks, as far as torch's sockets tell.

To shut them down is how a rank that waits in one of gloo's collectives is made to raise: it hears what it
would hear if the peer's process were gone.
"""

from __future__ import annotations

from typing import Set

from . import sockets

_opened: Set[sockets.Handle] = set()


def begin(before: Set[sockets.Handle]) -> None:
    """The default group has been made; ``before``: the sockets that were open until then."""
    _opened.clear()
    add(before)


def add(before: Set[sockets.Handle]) -> None:
    """Another group has been made."""
    _opened.update(sockets.opened() - before)


def shut() -> None:
    """End them all."""
    sockets.shut(set(_opened))
