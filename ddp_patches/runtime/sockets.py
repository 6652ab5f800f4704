"""The sockets of this process, as ``/proc`` shows them; none are found where there is no ``/proc``.

torch does not tell which sockets are its own. Those that were opened during a call of torch's are taken
for its, and remembered with their inode: a number that has been closed is soon given to another file.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import Iterator, List, Optional, Set, Tuple

Handle = Tuple[int, str]  # file descriptor and "socket:[inode]"

_RECEIVED = slice(128, 136)  # tcpi_bytes_received, in Linux' struct tcp_info


def opened() -> Set[Handle]:
    """All sockets that are open now."""
    found: Set[Handle] = set()
    try:
        names: List[str] = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for name in names:
        target = _target(name)
        if target.startswith("socket:"):
            found.add((int(name), target))
    return found


def connected_to(handles: Set[Handle], port: int) -> Set[Handle]:
    """Those of ``handles`` whose peer has ``port``."""
    found = set()
    for handle in handles:
        with _socket_of(handle) as connection:
            if connection is not None:
                name = connection.getpeername()  # a path for a socket of the file system
                if isinstance(name, tuple) and name[1] == port:
                    found.add(handle)
    return found


def shut(handles: Set[Handle]) -> None:
    """End the connections, as the end of the process would: whoever is blocked in one gets an error."""
    for handle in handles:
        with _socket_of(handle) as connection:
            if connection is not None:
                connection.getpeername()  # raises for a listener: gloo aborts when its one is shut down
                connection.shutdown(socket.SHUT_RDWR)


def free_port() -> int:
    """A port of this machine that nobody listens on at the moment; somebody else may take it meanwhile."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def received(handle: Handle) -> int:
    """Bytes that have come over a connection; 0 where the system does not say."""
    with _socket_of(handle) as connection:
        if connection is not None and hasattr(socket, "TCP_INFO"):
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            if len(info) >= _RECEIVED.stop:
                return int.from_bytes(info[_RECEIVED], sys.byteorder)
    return 0


def keep_alive(handles: Set[Handle], idle: int, interval: int, count: int) -> None:
    """Have the kernel ask a silent peer after ``idle`` seconds, ``count`` times, ``interval`` apart.

    It asks nothing while a request is on its way, and repeats that for a quarter of an hour: the same bound
    holds for a request that the peer's kernel has not confirmed.
    """
    unconfirmed = 1000 * (idle + interval * count)  # milliseconds
    options = (
        ("TCP_KEEPIDLE", idle),
        ("TCP_KEEPINTVL", interval),
        ("TCP_KEEPCNT", count),
        ("TCP_USER_TIMEOUT", unconfirmed),
    )
    for handle in handles:
        with _socket_of(handle) as connection:
            if connection is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in options:
                    if hasattr(socket, name):
                        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _target(name: str) -> str:
    try:
        return os.readlink("/proc/self/fd/" + name)
    except OSError:  # closed meanwhile, as the one of listdir itself
        return ""


@contextlib.contextmanager
def _socket_of(handle: Handle) -> Iterator[Optional[socket.socket]]:
    """A socket object over a copy of the descriptor, None if it is another one by now. Swallows OSError."""
    connection = None
    with contextlib.suppress(OSError):
        copy = os.dup(handle[0])
        if _target(str(copy)) == handle[1]:
            connection = socket.socket(fileno=copy)
        else:
            os.close(copy)
    try:
        yield connection
    except OSError:
        pass
    finally:
        if connection is not None:
            connection.close()
