"""The end of the process: stop our threads and destroy the groups, while both are still possible.

``threading._shutdown`` is what the interpreter calls when the main thread has ended, and what
``multiprocessing`` calls in a child that then leaves by ``os._exit``. Afterwards all non-daemon
threads have been joined and nothing has been torn down yet. ``atexit`` is too late for us: fork
children skip it, and on 3.12 no thread can be started there. Ours is started beforehand.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from typing import Any, Callable, Iterator, List, Optional, Tuple

from .. import console, settings
from . import stacks

_TICK_SECONDS = 0.25
_ENDING = frozenset(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1") if hasattr(signal, name)
)
_THREADS_SECONDS = 60.0  # for the user's threads, until they are named

Step = Callable[[], Any]


class _Closer:
    """A daemon thread that waits for the end and then does the steps; the main thread waits for it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.steps: List[Tuple[str, Step]] = []
        self.hurry = threading.Event()  # a signal has come
        self.until = 0.0  # a step has asked for so long
        self.first: List[Step] = []
        self._finishing_at = self._hurried_at = 0.0
        self._main_has_ended = threading.Event()
        self._begin, self._done = threading.Event(), threading.Event()
        self._doing = ""
        threading.Thread(target=self._run, name="ddp_patches closing", daemon=True).start()

    def _run(self) -> None:
        self._main_has_ended.wait()
        if not self._begin.wait(_THREADS_SECONDS):
            _quietly("naming threads", _name_threads)
        self._begin.wait()
        self._do_steps()
        self._done.set()

    def _do_steps(self) -> None:
        while True:
            try:
                name, step = self.steps.pop()  # a step may take others back
            except IndexError:
                return
            self._doing = name
            _quietly(name, step)

    def expect(self) -> None:
        """The main thread has ended; the steps come when the user's threads have ended as well."""
        for callback in self.first:
            _quietly("a look around", callback)
        self._main_has_ended.set()

    def finish(self, heard: Callable[[], bool]) -> None:
        """Have the steps done, within ``exit_timeout`` or for as long as a step has asked for.

        ``heard()``: whether a signal has come since it was called last.
        """
        self._main_has_ended.set()
        self._begin.set()
        self._finishing_at = time.monotonic()
        raised = None
        while True:
            try:
                self._wait_until_done(heard)
                break
            except KeyboardInterrupt:  # of our own wait: the program itself has come to its end
                self.hurry.set()
            except BaseException as error:  # of a handler of the program's
                self.hurry.set()
                raised = error
        if not self._done.is_set():
            console.warn(
                "%s did not end within %s (setting exit_timeout); the process goes on to exit"
                % (self._doing, settings.format_duration(settings.current().exit_timeout))
            )
            self._do_steps()  # a thread that is inside the store would abort the process
        if raised is not None:
            raise raised

    def _wait_until_done(self, heard: Callable[[], bool]) -> None:
        bound = settings.current().exit_timeout
        while not self._done.wait(min(_TICK_SECONDS, bound)):
            if heard():
                self.hurry.set()
            now = time.monotonic()
            if self.hurry.is_set():
                self._hurried_at = self._hurried_at or now
                deadline = self._hurried_at + bound
            else:
                deadline = max(self._finishing_at, self.until) + bound
            if now >= deadline:
                return


def _quietly(name: str, step: Step) -> None:
    try:
        step()
    except Exception as error:  # the process is ending: its exit code is not ours to change
        console.logger().debug("%s at exit: %r", name, error)


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """What tells whether one has come that asks this process to end, also where its handler only notes it."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    try:
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    except (OSError, ValueError):  # the program may have ended for want of file descriptors
        yield lambda: False
        return

    def heard() -> bool:
        try:
            return bool(set(reader.recv(1024)) & _ENDING)
        except BlockingIOError:
            return False

    try:
        yield heard
    finally:
        with contextlib.suppress(OSError, ValueError):  # the one before may be closed by now
            signal.set_wakeup_fd(before)
        reader.close()
        writer.close()


def _name_threads() -> None:
    """Say what keeps this process from ending. It may be an upload: nothing is done about it."""
    frames = sys._current_frames()
    own = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    named = [
        "%s (%s)"
        % (thread.name, stacks.describe(stacks.telling(stacks.places(frames.get(thread.ident or 0)))))
        for thread in own
    ]
    if named:
        console.say(
            "the program came to its end %s ago. This process ends when the program's own threads have: %s. "
            "Daemon threads alone are not waited for."
            % (settings.format_duration(_THREADS_SECONDS), ", ".join(named))
        )


_closer: Optional[_Closer] = None
_shutdown: Optional[Callable[[], None]] = None  # the interpreter's own


def at_end(name: str, step: Step, first: Optional[Step] = None) -> Callable[[], None]:
    """Have ``step`` done when the process ends, last added first; returns what takes it back.

    ``step`` runs on a thread of ours, once all of the user's non-daemon threads have ended; ``first``
    on the main thread, when its program has ended.
    """
    global _closer, _shutdown
    if _closer is None or _closer.pid != os.getpid():
        _closer = _Closer()
    if _shutdown is None:
        _shutdown = threading._shutdown  # type: ignore[attr-defined]
        threading._shutdown = _shutdown_and_close  # type: ignore[attr-defined]
    entry = (name, step)
    steps = _closer.steps
    looks = _closer.first
    steps.append(entry)
    if first is not None:
        looks.append(first)

    def take_back() -> None:
        if entry in steps:
            steps.remove(entry)
        if first in looks:
            looks.remove(first)

    return take_back


@contextlib.contextmanager
def with_a_bound_of_its_own(seconds: float) -> Iterator[threading.Event]:
    """For a step that has to wait longer than ``exit_timeout``; it has to end when the event is set."""
    closer = _closer
    if closer is None:  # nothing was left for the end, and nobody waits for it
        yield threading.Event()
        return
    closer.until = time.monotonic() + seconds
    try:
        yield closer.hurry
    finally:
        closer.until = time.monotonic()


def _shutdown_and_close() -> None:
    assert _shutdown is not None
    closer = _closer if _closer is not None and _closer.pid == os.getpid() else None
    if closer is None:
        _shutdown()
        return
    closer.expect()
    with _signals() as heard:
        try:
            _shutdown()  # since Python 3.13 it prints a Ctrl-C that comes while it waits, and waits on
        except BaseException:
            closer.hurry.set()
            raise
        finally:
            closer.finish(heard)
