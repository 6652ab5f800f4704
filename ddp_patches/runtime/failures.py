"""The first error first: a rank that raises tells the others, and names the one that raised before it.

A rank that fails takes the others with it: their connections break, and the log is full of their errors. So
whoever raises first is written down where all can see it, before its connections end: in the job's store
and, for the launcher of this node and for the time after the store, in a folder that the launcher has made
(see ``failure_folder``). Every rank that raises afterwards prints that error first.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import socket
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, Optional

from .. import console, settings
from . import failure_folder, identity, job, news, progress, stacks, verdict
from .client import ChannelError, Client
from .stall import neighbours, rounds, standing

_STORE_SECONDS = 2.0
_GONE_SECONDS = 1.0  # from the end of a process's connections until its pid is free
_MOST_FRAMES, _LONGEST_MESSAGE, _LONGEST_TRACE = 30, 1000, 8000
_KEY = "failure"


@dataclasses.dataclass(frozen=True)
class Failure:
    """An uncaught exception. ``time``: seconds since the epoch; ``place``: file, line and function."""

    rank: int
    host: str
    pid: int
    kind: str
    message: str
    place: str
    time: float
    trace: str  # as Python prints it

    def sentence(self) -> str:
        """``Rank 2 (host, pid 7) failed first, at 12:01:33: ValueError: bad, at me/data.py:12 in load.``"""
        return "Rank %d (%s, pid %d) failed first, at %s: %s, at %s." % (
            self.rank,
            self.host,
            self.pid,
            time.strftime("%H:%M:%S", time.localtime(self.time)),
            self.summary(),
            self.place,
        )

    def summary(self) -> str:
        """``ValueError: bad label``."""
        return ": ".join(filter(None, (self.kind, " ".join(self.message.split()))))

    def dump(self) -> str:
        """JSON."""
        return json.dumps(dataclasses.asdict(self))


def parse(text: str) -> Optional[Failure]:
    """A failure as a rank has written it down, None if it is not one."""
    try:
        said = json.loads(text)
        return Failure(
            int(said["rank"]), str(said["host"])[:200], int(said["pid"]), str(said["kind"])[:100],
            console.printable(str(said["message"]))[:_LONGEST_MESSAGE], str(said["place"])[:300],
            float(said["time"]), console.printable(str(said["trace"]))[:_LONGEST_TRACE],
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def first(client: Client) -> Optional[Failure]:
    """The failure that was written down first, for the channel's thread."""
    return parse(client.take(_KEY))


_reported = False
_known: Optional[Failure] = None  # the first one, once this rank has heard of it


def is_known() -> bool:
    """Whether this rank has failed, or has heard of one that has."""
    return _reported or _known is not None


def report(error: BaseException) -> None:
    """This rank's program ends with ``error``: tell the others, or the user which rank was before it.

    Takes up to two seconds; where this rank hosts the store, half of ``exit_timeout`` more. Never raises:
    the error itself matters more.
    """
    global _reported
    is_end = isinstance(error, SystemExit) and error.code in (0, None)
    # Whoever is interrupted has not failed.
    if _reported or is_end or isinstance(error, KeyboardInterrupt):
        return
    _reported = True
    try:
        _report(error)
    except Exception as problem:
        console.logger().debug("the failure could not be told to the other ranks: %r", problem)


def _report(error: BaseException) -> None:
    running = job.current()
    rank = running.rank if running is not None else identity.rank_of(os.environ)
    if rank is None:
        return
    reason = _verdict(running) if running is not None else ""
    if reason:  # a connection that broke when another rank heard of it before this one
        console.warn(verdict.sentence(reason))
        return
    own = _failure(rank, error)
    failure_folder.note(own.rank, own.dump())
    found = _agree(running, own) if running is not None else None
    earliest = found or _known or parse(failure_folder.earliest())
    if earliest is None or (earliest.rank, earliest.pid) == (own.rank, own.pid):
        # Torch's errors of broken connections are all of this type.
        if running is not None and isinstance(error, RuntimeError):
            _say_who_is_gone(running, error)
        return
    failure_folder.note_first(earliest.dump())
    console.warn("%s\nWhat follows on this rank is a consequence of that." % earliest.sentence())


def _verdict(running: job.Job) -> str:
    try:
        found: str = running.channel.call(verdict.read, _STORE_SECONDS)
    except ChannelError:
        return ""
    return found


def _say_who_is_gone(running: job.Job, error: BaseException) -> None:
    """A rank that was killed, or that has ended without an exception, has told nobody."""
    deadline = time.monotonic() + _GONE_SECONDS
    _asked(running, running.collect)
    # Who has come to a good end is no reason for an error that has nothing to do with others.
    waited = standing.classify(stacks.error_places(error)).kind in standing.WAITS
    while True:
        gone = neighbours.gone(running)
        left = _asked(running, functools.partial(_left, running)) if waited else None
        if gone or left or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    left = left or []
    said = ["Rank %d %s" % (rank, _how_gone(running, rank, gone, left)) for rank in sorted({*gone, *left})]
    if said:
        console.warn("%s\nWhat follows on this rank is probably a consequence of that." % " ".join(said))


def _asked(running: job.Job, task: Callable[[Client], Any]) -> Any:
    """What the store says; None where it has ended, as with a rank 0 that was killed."""
    try:
        return running.channel.call(task, _STORE_SECONDS)
    except ChannelError:
        return None


def _left(running: job.Job, client: Client) -> List[int]:
    """The other ranks whose programs have come to their ends; one request as long as there is none."""
    if not rounds.count_left(client):
        return []
    return [r for r in range(running.world_size) if r != running.rank and rounds.has_left(client, r)]


def _how_gone(running: job.Job, rank: int, gone: Dict[int, str], left: List[int]) -> str:
    if rank in left:  # its process may take a while to end, or is on another node
        return "(%s) has come to the end of its program." % progress.host_and_pid(running, rank)
    return gone[rank] + ", without a word."


def _failure(rank: int, error: BaseException) -> Failure:
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-_MOST_FRAMES))
    return Failure(
        rank, socket.gethostname(), os.getpid(), type(error).__name__, str(error)[:_LONGEST_MESSAGE],
        stacks.describe(stacks.telling(stacks.error_places(error))), time.time(), trace[-_LONGEST_TRACE:],
    )  # fmt: skip


def _agree(running: job.Job, own: Failure) -> Optional[Failure]:
    """The first failure of all ranks, this one's perhaps; None if the store does not say."""
    try:
        text = running.channel.call(lambda client: news.put(client, _KEY, own.dump()), _STORE_SECONDS)
        if running.hosts_store():
            _let_the_others_hear(running)  # the store ends with this process
    except ChannelError:
        return None
    return parse(text)


def _let_the_others_hear(running: job.Job) -> None:
    deadline = time.monotonic() + settings.current().exit_timeout / 2
    while time.monotonic() < deadline:
        if running.channel.call(_heard, _STORE_SECONDS) >= running.world_size - 1:
            return
        time.sleep(0.1)


def _heard(client: Client) -> int:
    return client.add(_KEY + "/heard", 0)


def hear(client: Client, failure: Failure) -> None:
    """This rank knows of the first failure, for the channel's thread; also when the store is gone."""
    global _known
    _known = failure
    client.add(_KEY + "/heard", 1)


def install() -> None:
    """Have an uncaught exception of the main thread reported; the hook that was there is called as well."""
    if getattr(sys.excepthook, "reports_failures_of", None) == os.getpid():
        return
    previous, pid = sys.excepthook, os.getpid()

    def hook(kind: Any, error: BaseException, trace: Any) -> None:
        # Before the traceback, so that the error that matters comes first in this rank's log. A child that
        # was forked is no rank. At a prompt and in a notebook an error ends a statement, not the rank.
        if os.getpid() == pid and not hasattr(sys, "ps1"):
            report(error)
        previous(kind, error, trace)

    hook.reports_failures_of = pid  # type: ignore[attr-defined]
    sys.excepthook = hook


def say_at_the_end() -> None:
    """For a launcher: if it ends with an error, the failure that came first is the last that it prints."""
    if getattr(sys.excepthook, "says_first_failure_of", None) == os.getpid():
        return
    previous, pid = sys.excepthook, os.getpid()

    def hook(kind: Any, error: BaseException, trace: Any) -> None:
        previous(kind, error, trace)
        found = parse(failure_folder.earliest_of_launch()) if os.getpid() == pid else None
        if found is not None:
            console.warn("%s What other ranks report is a consequence of that." % found.sentence())

    hook.says_first_failure_of = pid  # type: ignore[attr-defined]
    sys.excepthook = hook
