"""The thread that talks to the job's store for this rank.

A main thread that is blocked in a collective holds the lock of the group's own client, and a stopped
store host blocks every client inside its call. So everything of ours goes through a second client
that only this thread touches, and whoever wants something waits for the thread, with a bound, and may
give it up.

The thread must not be inside a store call when the interpreter ends (the process would abort), so
``close()`` ends a blocked call.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any, Callable, List, NamedTuple, Optional

from .. import console
from . import closing, sockets
from .client import LONGEST_CONNECT_SECONDS, Address, ChannelError, Client, StoreLost

_KNOCK_SECONDS = 5.0  # one attempt to connect; attempts go on until close()
_RETRY_SECONDS = 0.5
_AGAIN_SECONDS = 0.2
_FORK_PATIENCE_SECONDS = 0.5

Task = Callable[[Client], Any]
OVER = "over"  # what a task returns that need not be done again


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

    def finish(self, value: Any = None, error: Optional[BaseException] = None) -> None:
        """For the thread: the task has been done."""
        self._value, self._error = value, error
        self._done.set()


class _Poller:
    """A task that is done again and again."""

    def __init__(self, task: Task, prefix: Optional[str], seconds: float) -> None:
        self.task, self.prefix, self.seconds = task, prefix, seconds
        self.at = time.monotonic()


class _Entry(NamedTuple):
    """A task of the queue. ``prefix`` None: the channel's own, for which it waits if need be."""

    task: Task
    prefix: Optional[str]
    pending: Pending
    poller: Optional[_Poller] = None


class Channel:
    """The thread and its queue."""

    def __init__(self, address: Address, unanswered: Optional[Callable[[float], None]] = None) -> None:
        """``unanswered`` is called with the seconds so far, about twice a second, until the store answers."""
        self.address = address
        self.broken: Optional[str] = None  # why nothing more is possible
        self._prefix: Optional[str] = None
        self._unanswered = unanswered
        self._pid = os.getpid()
        self._queue: List[_Entry] = []
        self._pollers: List[_Poller] = []
        self._wake = threading.Condition()
        self._in_call = threading.Lock()  # held during a task; taken around a fork
        self._closed = False
        self._client: Optional[Client] = None
        self._connects = False
        self._thread = threading.Thread(target=self._run, name="ddp_patches channel", daemon=True)
        _alive.append(self)
        self._thread.start()

    def begin(self, prefix: str) -> None:
        """Keys of tasks that name no prefix begin with this one; only now they are done."""
        with self._wake:
            self._prefix = prefix
            self._wake.notify()

    def submit(self, task: Task, prefix: Optional[str] = None) -> Pending:
        """Have ``task(client)`` done by the thread, in order."""
        pending = Pending()
        with self._wake:
            if self._closed or self.broken or self._pid != os.getpid():
                pending.finish(error=ChannelError(self.broken or "the channel is closed"))
            else:
                self._queue.append(_Entry(task, prefix, pending))
                self._wake.notify()
        return pending

    def call(self, task: Task, seconds: float, prefix: Optional[str] = None) -> Any:
        """``submit`` and wait; raises ChannelError when there is no answer within ``seconds``."""
        pending = self.submit(task, prefix)
        if not pending.wait(seconds):
            raise ChannelError("no answer from the store at %s:%d in %gs" % (self.address + (seconds,)))
        return pending.result()

    def every(self, seconds: float, task: Task, prefix: Optional[str] = None) -> Callable[[], None]:
        """Have ``task(client)`` done every ``seconds``, first now; returns what ends that.

        The task may return the seconds until it is done next, or OVER.
        """
        poller = _Poller(task, prefix, seconds)
        with self._wake:
            self._pollers.append(poller)
            self._wake.notify()

        return lambda: self._drop(poller)

    def _drop(self, poller: _Poller) -> None:
        with self._wake:
            if poller in self._pollers:
                self._pollers.remove(poller)

    def close(self, seconds: float, at_exit: bool = False) -> bool:
        """Stop and join the thread, at the latest after about ``seconds``; whether it has ended.

        ``at_exit``: the process ends. Other connections to the store are of no use either, and the
        thread may be inside the group's own client. While torch connects, this takes up to 6 s, also
        where the process has less time for its end: a thread that comes back while the interpreter ends is
        ended inside C++, and the process with it, by SIGABRT.
        """
        with self._wake:
            self._closed = True
            connects = self._connects
            self._wake.notify()
        if self in _alive:
            _alive.remove(self)
        if self._pid != os.getpid() or self._thread is threading.current_thread():
            return True
        if at_exit and connects:
            with closing.with_a_bound_of_its_own(LONGEST_CONNECT_SECONDS):
                self._end_thread(LONGEST_CONNECT_SECONDS, at_exit)
        else:
            self._end_thread(seconds, at_exit)
        return not self._thread.is_alive()

    def _end_thread(self, seconds: float, at_exit: bool) -> None:
        self._thread.join(min(1.0, seconds / 2))
        deadline = time.monotonic() + max(seconds / 2, seconds - 1.0)
        while self._thread.is_alive() and time.monotonic() < deadline:
            client = self._client
            if at_exit:
                sockets.shut(sockets.connected_to(sockets.opened(), self.address[1]))
            elif client is not None:
                client.shut()
            self._thread.join(_AGAIN_SECONDS)  # a client that is being connected tries anew

    def _run(self) -> None:
        try:
            if self._connect():
                while self._step():
                    pass
        except Exception as error:
            self.broken = str(error) or type(error).__name__
            console.logger().debug("the connection to the store at %s:%d has ended: %r", *self.address, error)
        finally:
            with self._wake:
                self.broken = self.broken or "the channel is closed"
                abandoned, self._queue = self._queue, []
                del self._pollers[:]
            for entry in abandoned:
                entry.pending.finish(error=ChannelError(self.broken))

    def _connect(self) -> bool:
        began = time.monotonic()
        while not self._closed:
            # Without torchrun the store appears with rank 0. Knocking first spares the log a
            # warning of torch's for each refused attempt.
            if _answers(self.address) and self._connect_once():
                return True
            if self._unanswered is not None:
                self._unanswered(time.monotonic() - began)
            with self._wake:
                if not self._closed:
                    self._wake.wait(_RETRY_SECONDS)
        return False

    def _connect_once(self) -> bool:
        with self._wake:
            if self._closed:
                return False
            client = self._client = Client(self.address)  # known to close() before it blocks
            self._connects = True
        try:
            with self._in_call:
                client.connect()
            return True
        except Exception:  # it went away again, or it is no store: knock on
            self._client = None
            return False
        finally:
            self._connects = False

    def _step(self) -> bool:
        """One task, one due poller, or a pause; False when closed. Raises StoreLost."""
        with self._wake:
            if self._closed:
                return False
            entry = self._next()
            if entry is None:
                return True
        client = self._client
        assert client is not None
        client.prefix = str(self._prefix if entry.prefix is None else entry.prefix)
        try:
            with self._in_call:
                value = entry.task(client)
            if entry.poller is not None:
                self._go_on(entry.poller, value)
            entry.pending.finish(value)
        except StoreLost as error:
            entry.pending.finish(error=error)
            raise
        except Exception as error:  # the task's own affair
            console.logger().debug("a task of the channel failed: %r", error)
            entry.pending.finish(error=error)
        return True

    def _go_on(self, poller: _Poller, value: Any) -> None:
        if value == OVER:
            self._drop(poller)
        elif isinstance(value, float):
            poller.at = time.monotonic() + value

    def _next(self) -> Optional[_Entry]:
        """What can be done now, else None after a pause. The lock is held."""
        for index, entry in enumerate(self._queue):
            if entry.prefix is not None or self._prefix is not None:
                return self._queue.pop(index)
        now = time.monotonic()
        possible = [p for p in self._pollers if p.prefix is not None or self._prefix is not None]
        due = [poller for poller in possible if poller.at <= now]
        if due:
            due[0].at = now + due[0].seconds
            return _Entry(due[0].task, due[0].prefix, Pending(), due[0])
        self._wake.wait(min((poller.at - now for poller in possible), default=None))
        return None


def _answers(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=_KNOCK_SECONDS).close()
    except OSError:
        return False
    return True


_alive: List[Channel] = []
_held: List[Channel] = []
_left_in_child: List[Client] = []  # never closed there: the connection is the parent's


def _before_fork() -> None:
    # A lock that the thread holds inside the store's client would stay locked in the child. Wait a
    # little for the call to end; a store that does not answer must not keep the user from forking.
    me = threading.current_thread()
    for channel in list(_alive):
        if channel._thread is not me and channel._in_call.acquire(timeout=_FORK_PATIENCE_SECONDS):
            _held.append(channel)


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop()._in_call.release()


def _after_fork_in_child() -> None:
    del _held[:]
    while _alive:
        channel = _alive.pop()
        channel._wake = threading.Condition()  # the parent's thread may have held the old one
        channel._closed, channel.broken = True, "the channel belongs to the parent process"
        if channel._client is not None:
            _left_in_child.append(channel._client)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
