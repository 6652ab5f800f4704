"""Rank-0-first blocks: the wait for a slow leader, outside any collective.

Upstream lets the other ranks wait in a barrier, whose time limit the leader's work then has to meet.
Here every rank that has come to its barrier number k adds itself to counter k in the job's store and
waits until the counter has reached the world size; only then it enters the real barrier, which takes
milliseconds. The protocol:

* A *leader* is a rank whose argument is 0: one for all nodes where releases pass the global rank, one
  per node where they pass the local rank.
* Numbers count barriers, not calls: a waiter's barrier comes before its body, a leader's after it,
  and nested blocks pair up as upstream's do.
* A leader that leaves its outermost block by an exception leaves a notice under its next number,
  without using it up; who waits there raises with that reason. If the leader catches its exception
  and comes to another block, it takes the notice back; the waiters give it two seconds for that.
* What becomes of barrier k is decided once: the first rank that has seen all come, or gives up,
  writes the verdict, and all obey it. So no rank raises while another goes on into the real barrier.
* Nobody gives up on a living leader that is inside its block before ``zero_first_timeout``. A rank
  that is missing and is *not* inside such a block gets the time that the group's own limit would
  have given it, then everybody is left to the real barrier, as upstream.
* A rank that has to leave the protocol says so, and all go on as upstream, for good. So it is also
  after a failure, should somebody catch it.

Only counters are polled; texts are read when a counter has announced them.
"""

from __future__ import annotations

import json
import os
from typing import Callable, Dict, Optional, Tuple

from .. import console, settings
from . import identity, stacks
from .client import ChannelError, Client
from .job import Job
from .progress import SIGN_SECONDS, give_sign, who
from .waiting import (
    LONGEST_TEXT,
    LeaderFailed,
    LeaderTooSlow,
    ProtocolLeft,
    Wait,
    leading_key,
    notice_keys,
)

__all__ = ["Barriers", "LeaderFailed", "LeaderTooSlow", "barriers_of"]

_FRAMES = 6  # of a leader's exception that travel to the waiters


class Barriers:
    """This rank's barriers in the rank-0-first blocks of one job. Used by the main thread."""

    def __init__(self, job: Job, patch_id: str) -> None:
        self._job = job
        self._patch_id = patch_id
        self._passed = 0
        self._depth = 0  # of blocks that this rank is inside as leader
        self._failed_at = 0  # the number under which this rank left its last notice
        self._has_notice = False
        self._left = False
        self._stop_giving_signs: Callable[[], None] = _nothing

    @property
    def number(self) -> int:
        """The number of the next barrier."""
        return self._passed + 1

    def lead(self) -> None:
        """This rank enters a block as leader."""
        self._depth += 1
        if self._depth > 1 or self._is_out():
            return
        self._take_notice_back()
        self._mark_leading()
        self._stop_giving_signs = self._job.channel.every(
            SIGN_SECONDS, lambda client: give_sign(client, self._job.rank)
        )

    def failed(self, error: BaseException) -> None:
        """This rank leaves a block as leader by ``error``."""
        self._leave_block()
        # An outer block may still catch it, and upstream's ranks would then go on waiting for that.
        if self._depth == 0 and not self._is_out():
            self._leave_notice(_describe(error, self._job))

    def done(self) -> None:
        """This rank has finished its block as leader: meet the others."""
        self._leave_block()
        self.meet()

    def meet(self) -> None:
        """Come to the next barrier; returns when the real one may be entered.

        Raises LeaderFailed when a leader has raised or died, LeaderTooSlow after
        ``zero_first_timeout``. Where the store is lost or somebody has left the protocol it returns:
        the real barrier then is what it is upstream.
        """
        if self._is_out():
            return
        wait = Wait(self._job, self._patch_id, self.number, self._failed_at == self.number)
        try:
            wait.until_all_have_come()
        except ProtocolLeft:
            self.leave()
            return
        except ChannelError as error:
            self._left = True
            if (identity.local_rank_of(os.environ) or 0) == 0:
                console.warn("rank-0-first blocks go on as upstream, in the plain barrier: %s" % error)
            return
        except BaseException:  # also a defect of ours, and Ctrl-C
            self.leave()
            raise
        self._passed += 1
        if self._depth:
            self._mark_leading()

    def leave(self) -> None:
        """Give the protocol up, for all ranks of the job."""
        self._left = True
        self._job.refuse(self._patch_id)

    def _is_out(self) -> bool:
        # A child that was forked inside a block is no rank.
        return self._left or self._job.pid != os.getpid()

    def _leave_block(self) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._stop_giving_signs()

    def _mark_leading(self) -> None:
        key = leading_key(self.number, self._job.rank)
        self._job.channel.submit(lambda client: client.add(key, 1))

    def _leave_notice(self, text: str) -> None:
        self._failed_at, self._has_notice = self.number, True
        notice, flag, counter = notice_keys(self.number, self._job.rank)

        def leave(client: Client) -> None:
            client.put(notice, json.dumps({"text": text}))
            client.add(flag, 1)
            client.add(counter, 1)

        # The notice should be out before this process goes on to die of the exception.
        self._job.channel.submit(leave).wait(settings.current().exit_timeout)

    def _take_notice_back(self) -> None:
        if not self._has_notice:
            return
        self._has_notice = False
        _, flag, counter = notice_keys(self.number, self._job.rank)

        def take_back(client: Client) -> None:
            client.add(counter, -1)
            client.add(flag, -1)

        self._job.channel.submit(take_back)


def _describe(error: BaseException, job: Job) -> str:
    lines = ["    %s:%d in %s" % place for place in stacks.error_places(error)[:_FRAMES]]
    text = "%s failed while other ranks waited for it: %s: %s\n  innermost frame first:\n%s" % (
        who(job, job.rank), type(error).__name__, str(error)[:LONGEST_TEXT // 2], "\n".join(lines)
    )  # fmt: skip
    return text[:LONGEST_TEXT]


def _nothing() -> None:
    pass


_latest: Optional[Tuple[Job, Dict[str, Barriers]]] = None


def barriers_of(job: Job, patch_id: str) -> Barriers:
    """The one counter of barriers that belongs to a patch in ``job``."""
    global _latest
    if _latest is None or _latest[0] is not job:
        _latest = (job, {})
    return _latest[1].setdefault(patch_id, Barriers(job, patch_id))
