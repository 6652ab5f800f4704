"""What a rank says while it waits for another one in a rank-0-first block."""

from __future__ import annotations

import json
import time
from typing import List, NamedTuple, Optional

from .. import console
from . import identity, stacks
from .client import Client
from .job import Job

SIGN_SECONDS = 10.0  # how often a leader says where it is
_LINES_AT_MINUTES = (1, 2, 5, 10)
_THEN_EVERY_MINUTES = 30


def minute_of_line(number: int) -> int:
    """Minutes after which line ``number`` (from 0) is printed: 1, 2, 5, 10, 40, 70, …"""
    if number < len(_LINES_AT_MINUTES):
        return _LINES_AT_MINUTES[number]
    return _LINES_AT_MINUTES[-1] + _THEN_EVERY_MINUTES * (number - len(_LINES_AT_MINUTES) + 1)


class Lines:
    """When the lines of one wait are due. A line that nobody was there to print is left out."""

    def __init__(self) -> None:
        self._count = 0

    def is_due(self, seconds: float) -> bool:
        """Whether a line is, after ``seconds`` of the wait; then it counts as printed."""
        due = seconds / 60 >= minute_of_line(self._count)
        while seconds / 60 >= minute_of_line(self._count):
            self._count += 1
        return due


def who(job: Job, rank: int) -> str:
    """``rank 0 (host, pid 4711)``."""
    peer = job.peers().get(rank)
    return "rank %d (%s, pid %d)" % (rank, peer["host"], peer["pid"]) if peer else "rank %d" % rank


def host_and_pid(job: Job, rank: int) -> str:
    """``host, pid 4711``, empty if the rank has not said where it is."""
    return who(job, rank).partition(" (")[2].rstrip(")")


class Sign(NamedTuple):
    """Where a leader last said it was, and how many seconds ago; None: it never did."""

    place: str
    seconds: Optional[float]


def give_sign(client: Client, rank: int) -> None:
    """Tell the others where this rank's main thread is."""
    place = stacks.describe(stacks.telling(stacks.main_thread_places()))
    client.put("zero_first/where/%d" % rank, json.dumps({"place": place, "time": time.time()}))


class Progress:
    """The lines of one wait."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._began = time.monotonic()
        self._lines = Lines()

    def is_due(self, missing: Optional[List[int]]) -> bool:
        """Whether this rank should say something now: the first one of its node that waits.

        ``missing``: the ranks that have not come, None if the store does not answer. Then nobody
        knows who else waits, and the first two of a node speak, since the first may be the one
        that is stopped.
        """
        if not self._lines.is_due(time.monotonic() - self._began):
            return False
        own = self._job.record["node"]
        before = [r for r, peer in self._job.peers().items() if r < self._job.rank and peer["node"] == own]
        return len(before) <= 1 if missing is None else all(rank in missing for rank in before)

    def say(self, state: str) -> None:
        """Print what the wait is for."""
        console.say("waiting %dm for %s." % ((time.monotonic() - self._began) / 60, state))

    def state_of(self, client: Client, rank: int) -> str:
        """What is known of a rank that has not come."""
        sign = self.last_sign(client, rank)
        name = who(self._job, rank)
        peer = self._job.peers().get(rank)
        if peer is not None and peer["node"] == self._job.record["node"] and identity.is_stopped(peer["pid"]):
            hint = "`kill -CONT %d` lets it go on" % peer["pid"]
            return "%s, which is stopped (SIGSTOP or a debugger); %s" % (name, hint)
        if sign.seconds is None:
            return "%s, which has not entered its rank-0-first block yet" % name
        if sign.seconds > 3 * SIGN_SECONDS:
            return "%s; its last sign was %ds ago, at %s" % (name, sign.seconds, sign.place)
        return "%s, which is alive and working: %s. Nothing is wrong so far" % (name, sign.place)

    def last_sign(self, client: Client, rank: int) -> Sign:
        """For the channel's thread."""
        try:
            said = json.loads(client.take("zero_first/where/%d" % rank))
            return Sign(str(said["place"])[:200], max(0.0, time.time() - float(said["time"])))
        except (ValueError, KeyError, TypeError, RecursionError):
            return Sign("", None)
