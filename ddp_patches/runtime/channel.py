"""This rank's own connection to the job's store, used by a thread of its own.

A main thread that is blocked in a collective holds the lock of the group's own client, and a stopped
store host blocks every client inside its call. So everything of ours goes through a second client
that only this thread touches, and whoever wants something waits for the thread, with a bound, and may
give it up. Values are read with ``add(counter, 0)`` or after a counter has announced them: a ``wait``
that times out leaves the client out of step before torch 2.1.

The thread must not be inside a store call when the interpreter ends (the process would abort), so
``close()`` ends a blocked call by shutting its socket down.
"""

from __future__ import annotations

import collections
import datetime
import os
import socket
import threading
import time
from typing import Any, Callable, Deque, List, Optional, Tuple

_CONNECT_SECONDS = 5.0  # one attempt; attempts go on until close()
_RETRY_SECONDS = 0.5
_LONGEST_VALUE = 64 * 1024  # bytes of JSON that we are willing to send or to read

Address = Tuple[str, int]
Task = Callable[["Client"], Any]


class ChannelError(RuntimeError):
    """The store cannot be used: closed, gone, or it answered with an error."""


class Client:
    """A TCPStore client below a prefix. All calls block the calling thread; use them in the channel's."""

    def __init__(self, address: Address, prefix: str) -> None:
        from torch.distributed import TCPStore

        before = _open_sockets()
        self._store = TCPStore(
            address[0], address[1], None, False,
            timeout=datetime.timedelta(seconds=_CONNECT_SECONDS), wait_for_workers=False,
        )  # fmt: skip
        self._sockets = [fd for fd in _open_sockets() - before if _peer_port(fd) == address[1]]
        self.prefix = prefix

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return it; 0 reads it."""
        return int(self._store.add(self.prefix + key, amount))

    def put(self, key: str, text: str) -> None:
        """Set a value of at most 64 KiB."""
        data = text.encode("utf-8", "replace")
        if len(data) > _LONGEST_VALUE:
            raise ChannelError("a value of %d bytes for %s is too long" % (len(data), key))
        self._store.set(self.prefix + key, data)

    def take(self, key: str) -> str:
        """A value that is known to be there (a counter said so): else this blocks for some seconds."""
        data: bytes = self._store.get(self.prefix + key)
        return data[:_LONGEST_VALUE].decode("utf-8", "replace")

    def first(self, key: str, text: str) -> str:
        """Write ``text`` unless somebody has written already; the text that counts for all ranks."""
        return bytes(self._store.compare_set(self.prefix + key, "", text)).decode("utf-8", "replace")

    def shut(self) -> None:
        """End a call that another thread is blocked in: its socket is shut down, the call raises."""
        for fd in self._sockets:
            try:
                copy = socket.socket(fileno=os.dup(fd))
            except OSError:
                continue
            try:
                copy.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            finally:
                copy.close()


class Pending:
    """The outcome of a task that the channel's thread has been asked to do."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._value: Any = None
        self._error: Optional[BaseException] = None

    def wait(self, seconds: float) -> bool:
        """Whether the task has been done within ``seconds``."""
        return self._done.wait(seconds)

    def result(self) -> Any:
        """The task's value; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._value

    def _finish(self, value: Any = None, error: Optional[BaseException] = None) -> None:
        self._value, self._error = value, error
        self._done.set()


class Channel:
    """The thread and its queue. ``prefix`` may be set later, before the first task that needs it."""

    def __init__(self, address: Address, unanswered: Optional[Callable[[float], None]] = None) -> None:
        """``unanswered`` is called with the seconds so far, about twice a second, until the store answers."""
        self.address = address
        self._unanswered = unanswered
        self.prefix = ""
        self.broken: Optional[str] = None  # why nothing more is possible
        self._pid = os.getpid()
        self._queue: Deque[Tuple[Task, Pending]] = collections.deque()
        self._pollers: List[List[Any]] = []  # [next time, interval, task]
        self._wake = threading.Condition()
        self._in_call = threading.Lock()  # held during a store call; taken around a fork
        self._closed = False
        self._client: Optional[Client] = None
        self._thread = threading.Thread(target=self._run, name="ddp_patches channel", daemon=True)
        self._thread.start()
        _alive.append(self)

    @property
    def connected(self) -> bool:
        """Whether the store has answered."""
        return self._client is not None

    def submit(self, task: Task) -> Pending:
        """Have ``task(client)`` done by the thread, in order."""
        pending = Pending()
        with self._wake:
            if self._closed or self.broken or self._pid != os.getpid():
                pending._finish(error=ChannelError(self.broken or "the channel is closed"))
            else:
                self._queue.append((task, pending))
                self._wake.notify()
        return pending

    def call(self, task: Task, seconds: float) -> Any:
        """``submit`` and wait; raises ChannelError when there is no answer within ``seconds``."""
        pending = self.submit(task)
        if not pending.wait(seconds):
            raise ChannelError("no answer from the store at %s:%d in %gs" % (self.address + (seconds,)))
        return pending.result()

    def every(self, seconds: float, task: Task) -> Callable[[], None]:
        """Have ``task(client)`` done every ``seconds``, first now; returns what ends that."""
        entry = [time.monotonic(), seconds, task]
        with self._wake:
            self._pollers.append(entry)
            self._wake.notify()

        def end() -> None:
            with self._wake:
                if entry in self._pollers:
                    self._pollers.remove(entry)

        return end

    def close(self, seconds: float) -> bool:
        """Stop and join the thread, at the latest after about ``seconds``; whether it has ended."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self in _alive:
            _alive.remove(self)
        if self._pid != os.getpid() or self._thread is threading.current_thread():
            return True
        self._thread.join(min(1.0, seconds / 2))
        if self._thread.is_alive() and self._client is not None:
            self._client.shut()
        self._thread.join(seconds / 2)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            if self._connect():
                while self._step():
                    pass
        except Exception as error:
            self.broken = _first_line(error)
        finally:
            with self._wake:
                self.broken = self.broken or "the channel is closed"
                abandoned, self._queue = self._queue, collections.deque()
            for _, pending in abandoned:
                pending._finish(error=ChannelError(self.broken))

    def _connect(self) -> bool:
        began = time.monotonic()
        while not self._closed:
            # Without torchrun the store appears with rank 0. Knocking first spares the log a
            # warning of torch's for each refused attempt.
            if _answers(self.address):
                try:
                    client = Client(self.address, self.prefix)
                except Exception:
                    pass  # it went away again, or it is no store: knock on
                else:
                    self._client = client
                    return True
            if self._unanswered is not None:
                self._unanswered(time.monotonic() - began)
            with self._wake:
                self._wake.wait(_RETRY_SECONDS)
        return False

    def _step(self) -> bool:
        """One task, one due poller, or a pause; False when closed."""
        task: Optional[Task] = None
        pending: Optional[Pending] = None
        with self._wake:
            if self._closed:
                return False
            now = time.monotonic()
            due = [entry for entry in self._pollers if entry[0] <= now]
            if self._queue:
                task, pending = self._queue.popleft()
            elif due:
                task = due[0][2]
                due[0][0] = now + due[0][1]
            else:
                upcoming = min((entry[0] for entry in self._pollers), default=now + 60.0)
                self._wake.wait(max(0.0, upcoming - now))
                return True
        client = self._client
        assert task is not None and client is not None
        client.prefix = self.prefix
        try:
            with self._in_call:
                value = task(client)
        except Exception as error:
            if isinstance(error, RuntimeError) and not isinstance(error, ChannelError):
                # torch's store errors are RuntimeErrors; the connection is in an unknown state then.
                with self._wake:
                    self.broken = _first_line(error)
                error = ChannelError(self.broken)
            if pending is not None:
                pending._finish(error=error)
            return self.broken is None
        if pending is not None:
            pending._finish(value)
        return True


def _first_line(error: BaseException) -> str:
    return "%s: %s" % (type(error).__name__, (str(error).splitlines() or [""])[0])


def _answers(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _open_sockets() -> set[int]:
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return set()
    found = set()
    for name in names:
        try:
            if os.readlink("/proc/self/fd/" + name).startswith("socket:"):
                found.add(int(name))
        except OSError:
            continue
    return found


def _peer_port(fd: int) -> Optional[int]:
    try:
        copy = socket.socket(fileno=os.dup(fd))
    except OSError:
        return None
    try:
        return int(copy.getpeername()[1])
    except OSError:
        return None
    finally:
        copy.close()


_alive: List[Channel] = []
_held: List[Channel] = []
_left_in_child: List[Client] = []  # never closed there: the connection is the parent's


def _before_fork() -> None:
    # A lock that the thread holds inside the store's client would stay locked in the child. Wait a
    # little for the call to end; a store that does not answer must not keep the user from forking.
    for channel in _alive:
        if channel._in_call.acquire(timeout=0.5):
            _held.append(channel)


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop()._in_call.release()


def _after_fork_in_child() -> None:
    _held.clear()
    while _alive:
        channel = _alive.pop()
        channel._closed, channel.broken = True, "the channel belongs to the parent process"
        if channel._client is not None:
            _left_in_child.append(channel._client)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
