"""A connection of our own to the job's store, and its socket.

The calls block whoever makes them, without a limit while the store's host is stopped, so they belong
into the channel's thread. Such a call is ended from outside by shutting its socket down.

Nothing here waits for a key. Before torch 2.1 a ``wait`` that times out leaves the client out of step
(its next ``add`` answers nonsense), and one that does not leaves its limit behind on the socket, so that
a later call fails where it should go on waiting for a host that is stopped. ``get`` waits, too.
"""

from __future__ import annotations

import contextlib
import datetime
from typing import Any, Iterator, Optional, Set, Tuple

from . import sockets

Address = Tuple[str, int]

# Then the channel tries anew. Short, since torch's attempts cannot be ended from outside: with growing pauses
# they go on for up to twice as long, which the end of the process has to wait for.
_CONNECT_SECONDS = 2.0
LONGEST_CONNECT_SECONDS = 3 * _CONNECT_SECONDS
LONGEST_VALUE = 64 * 1024  # bytes of JSON that we are willing to send or to read

# A host that has vanished (power, network) sends no word, and a call to its store would never return.
# The kernel asks for it after a minute of silence, and gives the connection up a minute later; a request that
# is not even received, after the same two minutes. A stopped process is something else: its kernel answers.
_KEEPALIVE = (60, 10, 6)  # seconds of silence, seconds between questions, questions


class ChannelError(RuntimeError):
    """The store cannot be used: not reached, closed, or no answer in time."""


class StoreLost(ChannelError):
    """A call to the store has failed; the connection is in an unknown state."""


class Client:
    """A TCPStore client whose keys all begin with ``prefix``."""

    def __init__(self, address: Address) -> None:
        self.prefix = ""
        self._address = address
        self._others = sockets.opened()  # not ours
        self._own: Optional[Set[sockets.Handle]] = None
        self._store: Any = None

    def connect(self) -> None:
        """Make the connection; raises RuntimeError. Blocks for as long as the store's host is stopped."""
        from torch.distributed import TCPStore

        self._store = TCPStore(
            self._address[0], self._address[1], None, False,
            timeout=datetime.timedelta(seconds=_CONNECT_SECONDS), wait_for_workers=False,
        )  # fmt: skip
        self._own = self._own_sockets()
        # Before torch 2.1 there is a second one, of a thread of torch's which ends the whole process when it
        # breaks. It is silent, while the store has answered on that of the requests.
        self._store.add("ddp_patches/hello", 0)
        sockets.keep_alive({each for each in self._own if sockets.received(each)}, *_KEEPALIVE)

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
        """A value, ``""`` if there is none."""
        return self.first(key, "")

    def first(self, key: str, text: str) -> str:
        """Write ``text`` unless somebody has written already; returns what counts for all ranks."""
        with _lost_if_failed():
            data = self._store.compare_set(self.prefix + key, "", text)
        return bytes(data)[:LONGEST_VALUE].decode("utf-8", "replace")

    def shut(self) -> None:
        """End a call that another thread is blocked in: the sockets are shut down, the call raises.

        Not while it connects: a connection that was made meanwhile may be the group's own.
        """
        sockets.shut(self._own or set())

    def _own_sockets(self) -> Set[sockets.Handle]:
        return sockets.connected_to(sockets.opened() - self._others, self._address[1])


@contextlib.contextmanager
def _lost_if_failed() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch's store errors are all of this kind
        text = (str(error).splitlines() or [""])[0]
        raise StoreLost("%s: %s" % (type(error).__name__, text)) from error
