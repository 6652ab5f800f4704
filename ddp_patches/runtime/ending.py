"""A rank whose job cannot go on ends: one of the others has failed, or all have stood still for too long.

First the main thread gets the chance to raise, so that the program's own handlers run: the connections of
its groups are shut down. With NCCL that does nothing, and a main thread that does not come back from its
collective within seconds is not coming back at all: then the process says why and leaves with code 1.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Optional

from .. import console, settings
from . import connections, failures, verdict
from .client import Client
from .failures import Failure
from .job import Job
from .stall import standing

_WAITED_SECONDS = 1.5  # without movement: it is in the collective that will never end
_STOOD_SECONDS = 5.0
_RAISE_SECONDS = 4.0  # for the main thread


class Ending:
    """What a rank's monitor knows about the end of its job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._failure: Optional[Failure] = None
        self._verdict = ""
        self._own_verdict = ""
        self._known_since: Optional[float] = None
        self._shut_at: Optional[float] = None

    def hear(self, client: Client) -> None:
        """For the channel's thread: the first failure of another rank; why all are to end."""
        failure = failures.first(client)
        if failure is not None and self._failure is None:
            failures.hear(client, failure)
            self._failure = failure
        self._verdict = verdict.read(client)

    def decide_alone(self, reason: str) -> None:
        """This rank can ask nobody and is to end, unless it moves: then ``""`` withdraws it."""
        self._own_verdict = reason

    def look(self, kind: str, idle: float) -> None:
        """Once a second: where the main thread stands, and for how many seconds it has."""
        reason = self._reason(kind, idle)
        if not reason:
            self._known_since = self._shut_at = None  # it has raised, or the job has gone on after all
            return
        self._known_since = self._known_since or time.monotonic()
        if (
            self._job.hosts_store()
            and time.monotonic() - self._known_since < settings.current().exit_timeout / 2
        ):
            return  # the others have to hear of it from the store that ends with this process
        if self._shut_at is None:
            console.warn(reason)
            self._shut_at = time.monotonic()
            connections.shut()
        elif time.monotonic() - self._shut_at > _RAISE_SECONDS:
            _leave()

    def _reason(self, kind: str, idle: float) -> str:
        failure = self._failure
        is_other = failure is not None and failure.rank != self._job.rank
        if failure is not None and is_other and kind in standing.WAITS and idle >= _WAITED_SECONDS:
            return "this rank waits for one that has failed, and ends. %s" % failure.sentence()
        decided = self._verdict or self._own_verdict
        if decided and kind != standing.LEAVING and idle >= _STOOD_SECONDS:
            return verdict.sentence(decided)
        return ""


def _leave() -> None:
    console.warn("the main thread does not come back; this rank leaves with exit code 1.")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(1)
