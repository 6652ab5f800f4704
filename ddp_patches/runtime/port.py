"""Keeps a TCP port for a process that will listen on it later, against everybody who looks for a free one.

To find a free port, let go of it and use it seconds later is a race: two launches at once can find the same.
A socket that is bound, and not listening, keeps the port from all who bind without SO_REUSEADDR, and from the
kernel's own choice; torch's store binds with it, and is let through. Set before the bind it would let through
a second launch as well, so it is set afterwards. Linux only: others have other rules.
"""

from __future__ import annotations

import random
import socket
import sys
from typing import Optional, Tuple

# Below what systems hand out by themselves: to connections, too, which do not ask for a free port.
_CANDIDATES = range(10000, 32768)
_TRIES = 20


def is_possible() -> bool:
    """Whether ports can be kept on this system."""
    return sys.platform == "linux"


def keep(port: int) -> Optional[socket.socket]:
    """A socket that keeps the port until it is closed; None if somebody else has the port."""
    keeper = socket.socket()
    try:
        keeper.bind(("", port))
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        keeper.close()
        return None
    return keeper


def keep_another() -> Tuple[int, socket.socket]:
    """A free port and what keeps it. Raises OSError if none is found."""
    # Not the global generator: frameworks seed it, and then each launch would try the same ports.
    for port in random.SystemRandom().sample(_CANDIDATES, _TRIES):
        keeper = keep(port)
        if keeper is not None:
            return port, keeper
    raise OSError("none of %d ports is free" % _TRIES)
