"""A signal to a process that waits for its launcher: the launcher ends its workers first, then we go on.

Left alone, Ctrl-C makes ``subprocess.run`` kill the launcher a quarter of a second later, before it has ended
the workers, and SIGTERM ends this process and nobody else.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, Callable, Dict, List, Optional

from .. import console, settings
from . import family
from .family import LOADER_SECONDS, Process

_MARGIN_SECONDS = 2.0  # for the launcher, which has a bound of its own
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Ended(BaseException):
    """Raised from a handler for a signal that would have ended the process at once."""


class Interruption:
    """From :meth:`arm` on, until :meth:`disarm`. ``launcher()`` is None as long as there are no workers.

    Only signals are taken over for which nobody has a handler yet, and only by the main thread.
    """

    def __init__(self, launcher: Callable[[], Optional[Process]]) -> None:
        self.received: Optional[int] = None
        self._launcher = launcher
        self._family: List[Process] = []
        self._before: Dict[int, Any] = {}
        self._timer: Optional[threading.Timer] = None

    def arm(self) -> None:
        """Take the signals over."""
        if threading.current_thread() is not threading.main_thread():
            return
        for name in _NAMES:
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None and signal.getsignal(number) in (
                signal.SIG_DFL,
                signal.default_int_handler,
            ):
                self._before[number] = signal.signal(number, self._handle)

    def disarm(self) -> None:
        """Give the signals back, except those for which somebody has set a handler since."""
        if self._timer is not None:
            self._timer.cancel()
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        self._before.clear()

    def follow(self) -> None:
        """After :meth:`disarm`: what would have happened at once without us, if there was a signal.

        Raises KeyboardInterrupt, or ends the process by the signal; raises SystemExit where the system keeps
        that signal from its process, which in a container is the first one.
        """
        if self.received is None:
            return
        family.end(self._family, LOADER_SECONDS)
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        os.kill(os.getpid(), self.received)
        raise SystemExit(128 + self.received)

    def _handle(self, number: int, frame: Any) -> None:
        again, self.received = self.received is not None, self.received or number
        if again or not self._is_passed_on(number):
            raise KeyboardInterrupt if number == signal.SIGINT else Ended(number)

    def _is_passed_on(self, number: int) -> bool:
        """Tell the launcher, and have the signal repeated if it takes too long."""
        try:
            launcher = self._launcher()
            if launcher is None:
                return False
            console.warn("%s: the workers are being ended" % signal.Signals(number).name)
            self._family = family.of_launcher(launcher.pid)
            if not launcher.send(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM):
                return False
            patience = settings.current().exit_timeout + _MARGIN_SECONDS
            main = threading.main_thread().ident
            self._timer = threading.Timer(patience, signal.pthread_kill, (main, number))
            self._timer.daemon = True
            self._timer.start()
        except Exception:  # whatever it is, the signal must have its effect
            return False
        return True
