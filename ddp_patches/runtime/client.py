"""A connection of our own to the job's store, and its socket.

The calls block whoever makes them, without a limit while the store's host is stopped, so they belong
into the channel's thread. Such a call is ended from outside by shutting its socket down.

Values are read with ``add(counter, 0)``, or with ``get`` after a counter has announced them: a ``wait``
that times out leaves the client out of step before torch 2.1 (its next ``add`` answers nonsense).
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
from typing import Any, Iterator, List, Optional, Set, Tuple

Address = Tuple[str, int]

_CONNECT_SECONDS = 5.0
LONGEST_VALUE = 64 * 1024  # bytes of JSON that we are willing to send or to read

# A host that has vanished (power, network) sends no word, and a call to its store would never return.
# The kernel asks for it after a minute of silence, and gives the connection up a minute later. A stopped
# process is something else: its kernel answers.
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))


class ChannelError(RuntimeError):
    """The store cannot be used: not reached, closed, or no answer in time."""


class StoreLost(ChannelError):
    """A call to the store has failed; the connection is in an unknown state."""


class Client:
    """A TCPStore client whose keys all begin with ``prefix``."""

    def __init__(self, address: Address) -> None:
        self.prefix = ""
        self._address = address
        self._others = _open_sockets()  # those that are not ours
        self._sockets: Optional[Set[int]] = None
        self._store: Any = None

    def connect(self) -> None:
        """Make the connection; raises RuntimeError. Blocks for as long as the store's host is stopped."""
        from torch.distributed import TCPStore

        self._store = TCPStore(
            self._address[0], self._address[1], None, False,
            timeout=datetime.timedelta(seconds=_CONNECT_SECONDS), wait_for_workers=False,
        )  # fmt: skip
        self._sockets = self._own_sockets()
        for fd in self._sockets:
            _keep_alive(fd)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return it; 0 reads it. Raises StoreLost, as do the others."""
        with _lost_if_failed():
            return int(self._store.add(self.prefix + key, amount))

    def put(self, key: str, text: str) -> None:
        """Set a value; raises ValueError beyond 64 KiB."""
        data = text.encode("utf-8", "replace")
        if len(data) > LONGEST_VALUE:
            raise ValueError("%d bytes for %s are too long" % (len(data), key))
        with _lost_if_failed():
            self._store.set(self.prefix + key, data)

    def take(self, key: str) -> str:
        """A value that is known to be there (a counter said so): else this blocks for some seconds."""
        with _lost_if_failed():
            data: bytes = self._store.get(self.prefix + key)
        return data[:LONGEST_VALUE].decode("utf-8", "replace")

    def first(self, key: str, text: str) -> str:
        """Write ``text`` unless somebody has written already; returns what counts for all ranks."""
        with _lost_if_failed():
            data = self._store.compare_set(self.prefix + key, "", text)
        return bytes(data)[:LONGEST_VALUE].decode("utf-8", "replace")

    def shut(self) -> None:
        """End a call that another thread is blocked in: the sockets are shut down, the call raises."""
        for fd in self._own_sockets() if self._sockets is None else self._sockets:
            with _socket_of(fd) as connection:
                if connection is not None and _peer_port(connection) == self._address[1]:
                    connection.shutdown(socket.SHUT_RDWR)

    def _own_sockets(self) -> Set[int]:
        found = set()
        for fd in _open_sockets() - self._others:
            with _socket_of(fd) as connection:
                if connection is not None and _peer_port(connection) == self._address[1]:
                    found.add(fd)
        return found


@contextlib.contextmanager
def _lost_if_failed() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch's store errors are all of this kind
        text = (str(error).splitlines() or [""])[0]
        raise StoreLost("%s: %s" % (type(error).__name__, text)) from error


def _open_sockets() -> Set[int]:
    """File descriptors of this process that are sockets; none where there is no ``/proc``."""
    found: Set[int] = set()
    try:
        names: List[str] = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for name in names:
        try:
            if os.readlink("/proc/self/fd/" + name).startswith("socket:"):
                found.add(int(name))
        except OSError:  # closed meanwhile, as the one of listdir itself
            continue
    return found


@contextlib.contextmanager
def _socket_of(fd: int) -> Iterator[Optional[socket.socket]]:
    """A socket object over a copy of ``fd``, None if it is no socket any more. Swallows OSError."""
    connection = None
    try:
        copy = os.dup(fd)
        try:
            connection = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
    except OSError:
        pass
    try:
        yield connection
    except OSError:
        pass
    finally:
        if connection is not None:
            connection.close()


def _peer_port(connection: socket.socket) -> Optional[int]:
    try:
        name = connection.getpeername()
    except OSError:
        return None
    return int(name[1]) if isinstance(name, tuple) else None  # a path for a socket of the file system


def _keep_alive(fd: int) -> None:
    with _socket_of(fd) as connection:
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
