"""Rank-0-first blocks: the wait for a slow leader, outside any collective.

Upstream lets the other ranks wait in a barrier, whose time limit the leader's work then has to meet.
Here every rank that has come to its barrier number k adds itself to counter k in the job's store and
waits until the counter has reached the world size; only then it enters the real barrier, which takes
milliseconds. The protocol:

* A *leader* is a rank whose argument is 0: one for all nodes where releases pass the global rank, one
  per node where they pass the local rank.
* Numbers count barriers, not calls: a waiter's barrier comes before its body, a leader's after it,
  and nested blocks pair up as upstream's do.
* A leader that raises leaves a notice under its next number, without using it up; who waits there
  raises with that reason. If the leader catches its exception and comes to another block, it takes
  the notice back; the waiters give it two seconds for that.
* Nobody gives up on a living leader that is inside its block before ``zero_first_timeout``. A rank
  that is missing and is *not* inside such a block gets the time that the group's own limit would
  have given it, then everybody is left to the real barrier, as upstream.
* A rank that has to leave the protocol (a defect of ours) says so, and all go on as upstream.

Only counters are polled; texts are read when a counter has announced them.
"""

from __future__ import annotations

import json
import time
from typing import Any, Callable, Dict, List, Optional

from .. import console, settings
from . import identity, limits, records, stacks
from .channel import ChannelError, Client
from .job import Job

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 1.0
_ROLL_CALL_SECONDS = 5.0  # asking for every single rank costs two requests for each of them
_GRACE_SECONDS = 2.0  # for a leader that catches its exception and tries again
_PLACE_SECONDS = 10.0  # how often a leader says where it is
_LINES_AT_MINUTES = (1, 2, 5, 10)
_THEN_EVERY_MINUTES = 30
_FRAMES = 6  # of a leader's exception that travel to the waiters
_LONGEST_TEXT = 4000  # characters of a notice


class LeaderFailed(RuntimeError):
    """The rank that went first has raised or died; the message says which, where and why."""


class LeaderTooSlow(TimeoutError):
    """The rank that went first is alive but has not finished within ``zero_first_timeout``."""


class Barriers:
    """This rank's barriers in rank-0-first blocks of one job. Used by the main thread."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._passed = 0
        self._leading = 0  # depth of blocks that this rank is inside as leader
        self._noticed: Optional[BaseException] = None  # what the current notice is about
        self._left = False
        self._stop_saying_where: Callable[[], None] = _nothing

    @property
    def number(self) -> int:
        """The number of the next barrier."""
        return self._passed + 1

    def lead(self) -> None:
        """This rank enters a block as leader."""
        self._take_notice_back()
        self._leading += 1
        self._mark_leading()
        if self._leading == 1:
            self._stop_saying_where = self._job.channel.every(_PLACE_SECONDS, self._say_where)

    def failed(self, error: BaseException) -> None:
        """This rank leaves its block as leader by ``error``."""
        self._leave_block()
        if error is not self._noticed:  # else a nested block has already said it
            first, self._noticed = self._noticed is None, error
            self._leave_notice(_describe(error, self._job), first)

    def done(self) -> None:
        """This rank has finished its block as leader: meet the others."""
        self._take_notice_back()
        self._leave_block()
        self.meet()

    def meet(self) -> None:
        """Come to the next barrier; returns when the real one may be entered.

        Raises LeaderFailed when a leader has raised or died, LeaderTooSlow after
        ``zero_first_timeout``. Where the store is lost or somebody has left the protocol it returns:
        the real barrier then is what it is upstream.
        """
        if self._left:
            return
        wait = _Wait(self._job, self.number)
        try:
            wait.until_all_have_come()
        except _ProtocolLeft:
            self._left = True
        except (LeaderFailed, LeaderTooSlow):
            raise
        except Exception as error:  # the store is lost, or a defect of ours
            self.leave()
            console.warn("rank-0-first blocks go on as upstream, in the plain barrier: %s" % error)
        self._passed += 1
        if self._leading:
            self._mark_leading()

    def leave(self) -> None:
        """Give the protocol up, for all ranks of the job."""
        self._left = True
        self._job.channel.submit(lambda client: client.add("zero_first/left", 1))

    def _leave_block(self) -> None:
        self._leading -= 1
        if self._leading == 0:
            self._stop_saying_where()

    def _mark_leading(self) -> None:
        key = "zero_first/%d/lead/%d" % (self.number, self._job.rank)
        self._job.channel.submit(lambda client: client.add(key, 1))

    def _say_where(self, client: Client) -> None:
        place = stacks.describe(stacks.telling(stacks.main_thread_places()))
        client.put("zero_first/where/%d" % self._job.rank, json.dumps({"place": place, "time": time.time()}))
        client.add("zero_first/where/%d/there" % self._job.rank, 1)

    def _leave_notice(self, text: str, first: bool) -> None:
        number, rank = self.number, self._job.rank

        def leave(client: Client) -> None:
            client.put("zero_first/%d/notice" % number, json.dumps({"rank": rank, "text": text}))
            client.add("zero_first/%d/notices" % number, 1 if first else 0)

        # The notice should be out before this process goes on to die of the exception.
        self._job.channel.submit(leave).wait(settings.current().exit_timeout)

    def _take_notice_back(self) -> None:
        if self._noticed is not None:
            self._noticed = None
            number = self.number
            self._job.channel.submit(lambda client: client.add("zero_first/%d/notices" % number, -1))


class _Wait:
    """One rank's wait at one barrier."""

    def __init__(self, job: Job, number: int) -> None:
        self._job = job
        self._number = number
        self._prefix = "zero_first/%d/" % number
        self._began = time.monotonic()
        self._notice_since: Optional[float] = None
        self._next_roll_call = self._began + _ROLL_CALL_SECONDS
        self._lines = 0

    def until_all_have_come(self) -> None:
        come = self._ask(lambda client: self._arrive(client, 1))
        pause = _FIRST_PAUSE_SECONDS
        try:
            while come < self._job.world_size:
                time.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
                come, notices, left = self._ask(self._look)
                if left:
                    raise _ProtocolLeft
                if come < self._job.world_size and self._must_stop(notices):
                    return
        except _AllHaveCome:
            return

    def _arrive(self, client: Client, amount: int) -> int:
        client.add(self._prefix + "at/%d" % self._job.rank, amount)
        return client.add(self._prefix + "come", amount)

    def _look(self, client: Client) -> List[int]:
        return [
            client.add(self._prefix + "come", 0),
            client.add(self._prefix + "notices", 0),
            client.add("zero_first/left", 0),
        ]

    def _ask(self, task: Callable[[Client], Any]) -> Any:
        """Have the channel do ``task``; while the store's host is stopped, go on waiting for it."""
        pending = self._job.channel.submit(task)
        while not pending.wait(1.0):
            if time.monotonic() - self._began > settings.current().zero_first_timeout:
                raise ChannelError("the store has not answered within zero_first_timeout")
            self._line(lambda: "the store's host, which does not answer (stopped, or the network is down)")
        return pending.result()

    def _must_stop(self, notices: int) -> bool:
        """True: go to the real barrier although somebody is missing. Raises for a failed leader."""
        now = time.monotonic()
        if notices > 0:
            self._notice_since = self._notice_since or now
            if now - self._notice_since >= _GRACE_SECONDS:
                self._withdraw()
                raise LeaderFailed(self._ask(self._notice))
            return False
        self._notice_since = None
        dead = self._dead_peer()
        if dead is not None:
            self._withdraw()
            text = "%s died (killed, or its interpreter crashed: see the launcher's exit codes)" % _who(
                self._job, dead
            )
            self._ask(lambda client: self._report_death(client, dead, text))
            raise LeaderFailed(text)
        if now < self._next_roll_call:
            return False
        self._next_roll_call = now + _ROLL_CALL_SECONDS
        missing = self._ask(self._missing)
        leading = [rank for rank in missing if missing[rank]]
        return self._is_over(now - self._began, leading, list(missing))

    def _is_over(self, seconds: float, leading: List[int], missing: List[int]) -> bool:
        longest = settings.current().zero_first_timeout
        if leading and seconds > longest:
            self._withdraw()
            raise LeaderTooSlow(
                "%s has been inside its rank-0-first block for %s, the setting zero_first_timeout: %s"
                % (
                    _who(self._job, leading[0]),
                    settings.format_duration(longest),
                    self._last_sign(leading[0])[0],
                )
            )
        if not leading and seconds > limits.own_limit():
            console.warn(
                "%s did not come to a rank-0-first block within the group's own limit of %s; this rank "
                "goes on to the plain barrier, as upstream."
                % (records.ranks_phrase(missing), settings.format_duration(limits.own_limit()))
            )
            self._job.channel.submit(lambda client: client.add("zero_first/left", 1))
            return True
        if missing:
            self._line(lambda: self._state_of(leading[0] if leading else missing[0]), missing)
        return False

    def _missing(self, client: Client) -> Dict[int, bool]:
        """Ranks that have not come, and whether each is inside a block as leader."""
        found = {}
        for rank in range(self._job.world_size):
            if client.add(self._prefix + "at/%d" % rank, 0) < 1:
                found[rank] = client.add(self._prefix + "lead/%d" % rank, 0) > 0
        return found

    def _dead_peer(self) -> Optional[int]:
        """A rank of this node whose process is gone. The other nodes hear of theirs by a notice."""
        own = self._job.record["node"]
        for rank, peer in self._job.peers().items():
            if peer["node"] == own and identity.has_died(peer["pid"], peer["started"]):
                return rank
        return None

    def _report_death(self, client: Client, rank: int, text: str) -> None:
        client.put(self._prefix + "notice", json.dumps({"rank": rank, "text": text}))
        client.add(self._prefix + "notices", 1)

    def _notice(self, client: Client) -> str:
        try:
            notice = json.loads(client.take(self._prefix + "notice"))
            return console.printable(str(notice["text"])[:_LONGEST_TEXT])
        except (ValueError, KeyError, TypeError):
            return "a leader failed; its notice cannot be read"

    def _withdraw(self) -> None:
        """Take the own arrival back, so that this number is not used up either.

        If the counter was full meanwhile, others are on their way into the real barrier, and so
        must this rank be.
        """

        def withdraw(client: Client) -> bool:
            if self._arrive(client, -1) == self._job.world_size - 1:
                self._arrive(client, 1)
                return False
            return True

        if not self._ask(withdraw):
            raise _AllHaveCome

    def _state_of(self, rank: int) -> str:
        """What is known of a rank that has not come, for the progress line."""
        who, place, age = _who(self._job, rank), *self._last_sign(rank)
        peer = self._job.peers().get(rank)
        if peer is not None and peer["node"] == self._job.record["node"] and identity.is_stopped(peer["pid"]):
            return "%s, which is stopped (SIGSTOP or a debugger); `kill -CONT %d` lets it go on" % (
                who,
                peer["pid"],
            )
        if age is None:
            return "%s, which has not entered its rank-0-first block yet" % who
        if age > 3 * _PLACE_SECONDS:
            return "%s; its last sign was %ds ago, at %s" % (who, age, place)
        return "%s, which is alive and working: %s. Nothing is wrong so far" % (who, place)

    def _last_sign(self, rank: int) -> tuple[str, Optional[float]]:
        """Where a leader last said it was, and how many seconds ago (None: it never did)."""

        def read(client: Client) -> str:
            if client.add("zero_first/where/%d/there" % rank, 0) < 1:
                return "{}"
            return client.take("zero_first/where/%d" % rank)

        try:
            said = json.loads(self._ask(read))
            return str(said["place"])[:200], max(0.0, time.time() - float(said["time"]))
        except (ValueError, KeyError, TypeError):
            return "", None

    def _line(self, describe: Callable[[], str], missing: Optional[List[int]] = None) -> None:
        """The progress line, when one is due, from the first waiter of the node."""
        minutes = (time.monotonic() - self._began) / 60
        if minutes < _minute_of_line(self._lines):
            return
        while minutes >= _minute_of_line(self._lines):
            self._lines += 1
        own = self._job.record["node"]
        before = [r for r, peer in self._job.peers().items() if r < self._job.rank and peer["node"] == own]
        # Without the store nobody knows who else waits: then the first two of a node speak, since
        # the first may be the one that is stopped.
        silent = len(before) > 1 if missing is None else any(rank not in missing for rank in before)
        if not silent:
            console.say("waiting %dm for %s." % (minutes, describe()))


class _AllHaveCome(Exception):
    """The last rank came while this one was about to give up."""


class _ProtocolLeft(Exception):
    """Another rank has gone on to the plain barrier, for good."""


def _minute_of_line(number: int) -> int:
    """Minutes after which line ``number`` (from 0) is printed: 1, 2, 5, 10, 40, 70, …"""
    if number < len(_LINES_AT_MINUTES):
        return _LINES_AT_MINUTES[number]
    return _LINES_AT_MINUTES[-1] + _THEN_EVERY_MINUTES * (number - len(_LINES_AT_MINUTES) + 1)


def _who(job: Job, rank: int) -> str:
    peer = job.peers().get(rank)
    return "rank %d (%s, pid %d)" % (rank, peer["host"], peer["pid"]) if peer else "rank %d" % rank


def _describe(error: BaseException, job: Job) -> str:
    places = stacks.error_places(error)[:_FRAMES]
    lines = ["    %s:%d in %s" % place for place in places]
    text = "%s failed while the other ranks waited for it: %s: %s\n  innermost frame first:\n%s" % (
        _who(job, job.rank), type(error).__name__, error, "\n".join(lines)
    )  # fmt: skip
    return text[:_LONGEST_TEXT]


def _nothing() -> None:
    pass


_barriers: Optional[Barriers] = None


def barriers_of(job: Job) -> Barriers:
    """The one counter of barriers that belongs to ``job``."""
    global _barriers
    if _barriers is None or _barriers._job is not job:
        _barriers = Barriers(job)
    return _barriers
