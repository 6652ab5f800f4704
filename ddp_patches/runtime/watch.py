"""Ends this process when another one, on which it depends, is gone: an orphaned launcher, or its workers.

The kernel's parent-death signal is not used: it fires when the *thread* ends that has started this process.
Nor is the number of the parent looked at, which is 1 in a container from the beginning: but the pid and start
time of the other process, twice a second, which costs some ten microseconds.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Callable, Mapping, Sequence

from .. import console, settings
from . import family
from .family import LOADER_SECONDS, Process

_INTERVAL_SECONDS = 0.5


class Watch:
    """A daemon thread. ``needed``: the processes, by what they are to this one.

    When one of them is gone this process gets SIGTERM, and after ``exit_timeout`` SIGKILL; so do those that
    ``mine()`` has named right before. What ``before()`` names is ended before anything else: afterwards this
    process may be gone at once. ``tidy()`` is called in any case.
    """

    def __init__(
        self,
        needed: Mapping[str, Process],
        tidy: Callable[[], None],
        mine: Callable[[], Sequence[Process]] = lambda: (),
        before: Callable[[], Sequence[Process]] = lambda: (),
    ) -> None:
        self._needed, self._mine, self._before, self._tidy = dict(needed), mine, before, tidy
        self._pid = os.getpid()
        self._over = threading.Event()
        self._ending = False
        self._family: Sequence[Process] = ()
        threading.Thread(target=self._run, name="ddp_patches watch", daemon=True).start()

    def stop(self) -> None:
        """This process has done its work. If it was just being ended, see to its family before it goes."""
        self._over.set()
        if self._ending:
            family.end(self._family, LOADER_SECONDS)

    def _run(self) -> None:
        while not self._over.wait(_INTERVAL_SECONDS):
            for what, process in self._needed.items():
                if not process.is_alive() and not self._over.is_set():
                    self._end(what, process)
                    return

    def _end(self, what: str, process: Process) -> None:
        self._family = self._mine()
        self._ending = True
        if os.environ.get("RANK", "0") == "0":  # each rank does the same, for the same reason
            console.warn("%s (pid %d) is gone: this process ends" % (what, process.pid))
        self._tidy()
        family.end(self._before(), 0.0)
        os.kill(self._pid, signal.SIGTERM)
        if not self._over.wait(settings.current().exit_timeout):
            family.end(self._family, 0.0)
            os.kill(self._pid, signal.SIGKILL)
