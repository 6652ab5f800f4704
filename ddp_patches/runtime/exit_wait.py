"""After success, the process that hosts the job's store stays for the ranks that still work.

Without torchrun rank 0 hosts the store, which ends with that process. The others may be at work for minutes:
one evaluates, exports, uploads. They need the store for whatever group or barrier they still make, and NCCL's
own threads fill the log with errors once it is gone.

The host says that it waits; from then on the others' monitors give a sign every few seconds, which tells
where they stand. A rank that has left or died, gives no sign or stands still is not waited for, nor is one
without ddp_patches: then the process ends, as it would without us.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Dict, NamedTuple, Optional

from .. import console, settings
from . import failures, news, progress
from .client import ChannelError, Client
from .job import Job
from .stall import neighbours, rounds
from .stall.post import Post, parse

_LOOK_SECONDS, _SIGN_SECONDS = 1.0, 5.0
# From the host's word to the first sign: the monitors of a large node ask for news every six seconds.
_SILENT_SECONDS = 20.0
_STORE_SECONDS = 5.0
_HOST_WAITS = "exit/host_waits"


def is_due(job: Job) -> bool:
    """Whether this process, whose program has come to its end, has to wait for others."""
    current = settings.current()
    has_monitor = current.stall_after > 0
    return job.hosts_store() and has_monitor and current.exit_wait > 0 and not failures.is_known()


class Signs:
    """What a rank gives the host of the store, once that waits. For the channel's thread."""

    def __init__(self, job: Job, post: Callable[[], Post]) -> None:
        self._job, self._post = job, post
        self._gives = False

    def hear(self, client: Client) -> None:
        """There is news."""
        if not self._gives and client.add(_HOST_WAITS, 0):
            self._gives = True
            self._job.channel.every(_SIGN_SECONDS, self._give)

    def _give(self, client: Client) -> None:
        client.put("exit/sign/%d" % self._job.rank, self._post().dump())
        client.add("exit/signs/%d" % self._job.rank, 1)


class Sign(NamedTuple):
    """The newest of one rank. ``number``: how many it has given; ``at``: when this one was first seen."""

    number: int
    at: float
    post: Optional[Post]


def why_not(sign: Sign, now: float, patience: float) -> str:
    """Why a rank is not waited for, as the end of a sentence; ``""``: it works.

    ``patience``: seconds for which it may stand still.
    """
    if now - sign.at > _SILENT_SECONDS:
        return "gives no sign"
    if sign.post is not None and sign.post.idle > patience and not sign.post.computes():
        return "has not moved for %s, %s" % (
            settings.format_duration(int(sign.post.idle)),
            sign.post.where(),
        )
    return ""


class ExitWait:
    """The wait of the process that hosts the store. Its groups have been destroyed."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._began = time.monotonic()
        self._lines = 0
        self._signs: Dict[int, Sign] = {}
        self._signs_at = 0.0  # when they were last looked at

    def until_nobody_works(self, hurry: threading.Event) -> None:
        """Returns also after ``exit_wait``, when ``hurry`` is set, and when the store does not answer."""
        try:
            self._ask(self._announce)
            while not hurry.is_set() and not self._is_over(self._ask(self._look)):
                hurry.wait(_LOOK_SECONDS)
        except ChannelError as error:
            console.logger().debug("the wait for other ranks has ended: %s", error)

    def _ask(self, task: Callable[[Client], bool]) -> bool:
        return bool(self._job.channel.call(task, _STORE_SECONDS))

    def _announce(self, client: Client) -> bool:
        self._job.collect(client)
        client.add(_HOST_WAITS, 1)
        news.add(client)
        return True

    def _look(self, client: Client) -> bool:
        """Whether nobody is left who works."""
        peers = self._job.peers()
        if rounds.count_left(client) >= len(peers):
            return True
        now = time.monotonic()
        if now - self._signs_at >= _SIGN_SECONDS:
            self._signs_at = now
            gone = neighbours.gone(self._job)
            self._signs = {
                rank: self._sign(client, rank, now)
                for rank in peers
                if rank != self._job.rank and rank not in gone and not rounds.has_left(client, rank)
            }
        return not self._signs

    def _sign(self, client: Client, rank: int, now: float) -> Sign:
        before = self._signs.get(rank) or Sign(0, self._began, None)
        number = client.add("exit/signs/%d" % rank, 0)
        if number == before.number:
            return before
        return Sign(number, now, parse(client.take("exit/sign/%d" % rank), rank))

    def _is_over(self, nobody: bool) -> bool:
        if nobody:
            return True
        now, current = time.monotonic(), settings.current()
        reasons = {rank: why_not(sign, now, current.stall_after) for rank, sign in self._signs.items()}
        working = [rank for rank, reason in reasons.items() if not reason]
        if not working:
            rank, reason = next(iter(reasons.items()))
            self._say("does not wait for %s, which %s" % (progress.who(self._job, rank), reason))
            return True
        seconds = now - self._began
        if seconds > current.exit_wait:
            limit = settings.format_duration(current.exit_wait)
            self._say("ends now, though %s; it has waited for %s (setting exit_wait)"
                      % (self._what(working[0]), limit))  # fmt: skip
            return True
        if seconds / 60 >= progress.minute_of_line(self._lines):
            while seconds / 60 >= progress.minute_of_line(self._lines):
                self._lines += 1
            self._say(
                "has waited %dm for %d rank(s): %s. It ends with the last of them, or at %s "
                "(setting exit_wait)"
                % (seconds / 60, len(working), self._what(working[0]), _clock(current.exit_wait - seconds))
            )
        return False

    def _what(self, rank: int) -> str:
        sign = self._signs[rank]
        doing = " (%s)" % sign.post.where() if sign.post is not None else ""
        return "%s still works%s" % (progress.who(self._job, rank), doing)

    def _say(self, text: str) -> None:
        console.say("the program has ended. This process, which hosts the job's store, %s." % text)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))
