"""One question to all ranks of a job where they stand, and what is made of the answers.

Keys below ``stall/``: counters ``asked`` and ``over`` (rounds), ``left`` (ranks), ``<n>/posts``,
``<n>/printed``, ``<n>/closed``; texts ``<n>/by`` (who asks), ``<n>/post/<rank>``, ``<n>/report/<rank>``
(which rank is to print), ``left/<rank>``.
"""

from __future__ import annotations

import functools
import time
from typing import Any, Callable, Dict, Generator, List, Optional, Tuple

from ... import settings
from .. import limits, news, progress, verdict
from ..channel import Pending
from ..client import ChannelError, Client
from ..job import Job
from . import acting, findings
from .post import Post, parse
from .report import Report
from .standing import LEAVING

STORE_SECONDS = 10.0  # without an answer: this rank reports alone
LATE_SECONDS = 5.0  # for posts, beyond the time in which every rank must have looked

# A task for the channel's thread goes out, its outcome comes in.
Steps = Generator[Callable[[Client], Any], Any, None]


class Round:
    """One round, from the rank that opened it. Looked at once a second; never blocks for the others."""

    def __init__(
        self,
        job: Job,
        number_of_report: int,
        ask_seconds: float,
        has_moved: Callable[[], bool],
        publish: Callable[[Report], None],
    ) -> None:
        """``number_of_report``: of this standstill; ``publish``: prints what this rank is to print."""
        self._job = job
        self._report = number_of_report
        self._has_moved = has_moved
        self._publish = publish
        self._patience = ask_seconds + LATE_SECONDS
        self._steps = self._run()
        self._pending = self._submit(next(self._steps))
        self.ending: Optional[acting.End] = None  # when this job is to end, if nothing moves

    def _submit(self, task: Callable[[Client], Any]) -> Pending:
        self._asked_at = time.monotonic()
        return self._job.channel.submit(task)

    def is_over(self) -> bool:
        """Go on, if the store has answered. Raises ChannelError if it does not answer any more."""
        if not self._pending.wait(0):
            if time.monotonic() - self._asked_at > STORE_SECONDS:
                raise ChannelError("no answer in %ds" % STORE_SECONDS)
            return False
        try:
            self._pending = self._submit(self._steps.send(self._pending.result()))
        except StopIteration:
            return True
        return False

    def _run(self) -> Steps:
        number, is_own = yield self._open
        if not is_own:
            yield from self._until_closed(number)
            return
        began = time.monotonic()
        while time.monotonic() - began < self._patience:
            answered = yield lambda client: client.add("stall/%d/posts" % number, 0)
            if answered >= self._job.world_size:
                break
        report = build(self._job, (yield functools.partial(collect, self._job, number)), self._report)
        if report is None or self._has_moved():
            yield functools.partial(_close, number)
            return
        self.ending = report.ending
        yield from self._have_it_printed(number, report)
        if report.ending is not None and report.ending.seconds <= 0:
            reason = "%s %s" % (report.finding.sentence, report.ending.sentence())
            yield lambda client: verdict.give(client, reason)

    def _open(self, client: Client) -> Tuple[int, bool]:
        """The number of the round that is open, and whether it is this rank's."""
        number = client.add("stall/over", 0) + 1
        if client.first("stall/%d/by" % number, str(self._job.rank)) != str(self._job.rank):
            return number, False
        # One, unless the asker before this one was gone before it had come so far.
        client.add("stall/asked", max(0, number - client.add("stall/asked", 0)))
        news.add(client)
        return number, True

    def _until_closed(self, number: int) -> Steps:
        """Another rank asks. One that is killed or cut off meanwhile must not have the last word."""
        began = time.monotonic()
        while time.monotonic() - began < self._patience + STORE_SECONDS:
            if self._has_moved() or (yield lambda client: client.add("stall/over", 0)) >= number:
                return
        yield functools.partial(_close, number)

    def _have_it_printed(self, number: int, report: Report) -> Steps:
        """Users look at the log of the lowest rank: it prints, or we do if it does not come to that."""
        printer = min(rank for rank, post in report.posts.items() if post.kind != LEAVING)
        if printer != self._job.rank:
            yield lambda client: client.put(_report_key(number, printer), str(self._report))
        yield functools.partial(_close, number)
        began = time.monotonic()
        while printer != self._job.rank and time.monotonic() - began < self._patience:
            if (yield lambda client: client.add("stall/%d/printed" % number, 0)):
                return
        if (yield functools.partial(claim, number)):
            self._publish(report)


def _close(number: int, client: Client) -> None:
    """Round ``number`` is over; whoever says so first, it counts once."""
    if client.add("stall/%d/closed" % number, 1) == 1:
        client.add("stall/over", 1)


def _report_key(number: int, rank: int) -> str:
    return "stall/%d/report/%d" % (number, rank)


def claim(number: int, client: Client) -> bool:
    """Whether it is this rank that prints the report of round ``number``: the first that asks."""
    return client.add("stall/%d/printed" % number, 1) == 1


def duty(client: Client, number: int, rank: int) -> int:
    """Which report of the standstill ``rank`` is to print for round ``number``; 0 if none (yet)."""
    text = client.take(_report_key(number, rank))
    return int(text) if text.isdigit() and claim(number, client) else 0


def asked(client: Client) -> int:
    """The number of the newest round."""
    return client.add("stall/asked", 0)


def answer(client: Client, number: int, post: Post) -> None:
    """This rank's part in a round."""
    client.put("stall/%d/post/%d" % (number, post.rank), post.dump())
    client.add("stall/%d/posts" % number, 1)


def leave(client: Client, rank: int, post: Optional[Post]) -> None:
    """This rank will not answer any more, since its job ends; ``post``: of its monitor, if it has one."""
    client.put("stall/left/%d" % rank, post.dump() if post is not None else "{}")
    client.add("stall/left", 1)


def has_left(client: Client, rank: int) -> bool:
    """Whether a rank has said that its job ends."""
    return bool(client.take("stall/left/%d" % rank))


def count_left(client: Client) -> int:
    """How many ranks have said so."""
    return client.add("stall/left", 0)


def collect(job: Job, number: int, client: Client) -> Dict[int, Post]:
    """The posts of a round by rank, and the last ones of those that have left."""
    job.collect(client)
    prefix = "stall/%d/post/" % number
    posts = {}
    for rank in range(job.world_size):
        post = parse(client.take(prefix + str(rank)) or client.take("stall/left/%d" % rank), rank)
        if post is not None:
            posts[rank] = post
    return posts


def build(job: Job, posts: Dict[int, Post], number_of_report: int) -> Optional[Report]:
    """The report that follows from the posts of a round; None if nobody waits (any more)."""
    if max((post.idle for post in posts.values()), default=0.0) < settings.current().stall_after:
        return None
    silent = {rank: _of_silent(job, rank, posts) for rank in range(job.world_size) if rank not in posts}
    without: List[int] = [rank for rank in silent if job.peers().get(rank) is None]
    finding = findings.find(posts, silent, without)
    if finding is None:
        return None
    current = settings.current()
    abort_after = current.abort_after if current.on_stall == "abort" else None
    ending = acting.end(finding, posts, acting.Limits(own_limit(), current.stall_after, abort_after))
    return Report(number_of_report, finding, posts, silent, ending, what_happens(ending))


def own_limit() -> Optional[float]:
    """Seconds of the group's limit without us; None where it has not been raised."""
    return limits.own_limit() if limits.is_raised() else None


def what_happens(ending: Optional[acting.End]) -> str:
    """The report's line about that."""
    seconds = limits.in_force()
    timeout = settings.format_duration(seconds) if seconds is not None else "not known"
    return acting.what_happens(ending, timeout)


def _of_silent(job: Job, rank: int, posts: Dict[int, Post]) -> str:
    """What is known of a rank that has not answered."""
    for post in posts.values():
        if rank in post.neighbours:
            return post.neighbours[rank]
    if job.peers().get(rank) is None:
        return "is without ddp_patches, or has not said where it is"
    name = progress.host_and_pid(job, rank)
    return "gives no sign" + (" (%s)" % name if name else "")
