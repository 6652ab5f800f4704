"""After success, the process that hosts the job's store stays for the ranks that still work.

Without torchrun rank 0 hosts the store, which ends with that process. The others may be at work for minutes:
one evaluates, exports, uploads. They need the store for whatever group or barrier they still make, and NCCL's
own threads fill the log with errors once it is gone.

The host says that it waits; from then on the others' monitors give a sign every few seconds, which tells
where they stand. A rank that has left or died, gives no sign, stands still or waits in a collective itself is
not waited for, nor is one without ddp_patches: then the process ends, as it would without us.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional

from .. import console, settings
from . import failures, news, progress
from .client import ChannelError, Client
from .job import Job
from .stall import neighbours, rounds
from .stall.post import Post, parse

_LOOK_SECONDS, _SIGN_SECONDS = 1.0, 5.0
# To the first sign: the monitors of a node with many ranks ask for news less often, 0.75 s for each of them.
_FIRST_SIGN_SECONDS, _MORE_FOR_EACH = 15.0, 0.75
_RECORDS_SECONDS = 5.0  # from the beginning of the job
_WAITED_SECONDS = 10.0  # in one collective, at the end of the program of another rank
_STORE_SECONDS = 5.0  # the store is in this process
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
        post = dataclasses.replace(self._post(), stack=[], neighbours={})
        client.put("exit/sign/%d" % self._job.rank, post.dump())
        client.add("exit/signs/%d" % self._job.rank, 1)


class Peer(NamedTuple):
    """A rank that has not left. ``signs``: how many it has given; ``at``: when the newest was first seen."""

    signs: int
    at: float
    post: Optional[Post]


class Limits(NamedTuple):
    """Seconds: to the first sign, and for which a rank may stand still; and this rank's last counters."""

    first_sign: float
    patience: float
    counters: Mapping[str, int]


def why_not(peer: Peer, now: float, limits: Limits) -> str:
    """Why a rank is not waited for, as the end of a sentence; ``""``: it works."""
    silence, post = now - peer.at, peer.post
    if post is None:
        return "has given no sign" if silence > limits.first_sign else ""
    if silence > limits.patience:  # its main thread may hold the interpreter's lock for so long
        return "has given no sign for %s" % settings.format_duration(int(silence))
    if post.counts_started_work() and post.counters.get("default", 0) > limits.counters.get("default", 0):
        return "is in a collective that this rank has not come to, %s" % post.where()
    if post.waits() and post.idle > _WAITED_SECONDS:
        return "waits for others, %s" % post.where()
    if post.idle > limits.patience and not post.moves():
        return "has not moved for %s, %s" % (settings.format_duration(int(post.idle)), post.where())
    return ""


class ExitWait:
    """The wait of the process that hosts the store."""

    def __init__(self, job: Job, counters: Mapping[str, int]) -> None:
        """``counters``: this rank's last, of the collectives that it has begun."""
        self._job = job
        self._counters = counters
        self._began = time.monotonic()
        self._lines = progress.Lines()
        self._left = {job.rank}
        self._peers: Dict[int, Peer] = {}  # who may have to be waited for
        self._looked_at = 0.0

    def until_nobody_works(self, hurry: threading.Event) -> None:
        """Returns also after ``exit_wait``, when ``hurry`` is set, and when the store does not answer."""
        try:
            self._job.channel.call(self._announce, _STORE_SECONDS)
            while not hurry.is_set():
                self._job.channel.call(self._look, _STORE_SECONDS)
                if not (self._has_reason() if self._peers else self._is_young()):
                    return
                hurry.wait(_LOOK_SECONDS)
        except ChannelError as error:
            console.logger().debug("the wait for other ranks has ended: %s", error)

    def _is_young(self) -> bool:
        """Whether ranks may not have published their records yet."""
        return (
            len(self._job.peers()) < self._job.world_size
            and time.monotonic() - self._job.began < _RECORDS_SECONDS
        )

    def _announce(self, client: Client) -> None:
        self._job.collect(client)
        client.add(_HOST_WAITS, 1)
        news.add(client)

    def _look(self, client: Client) -> None:
        """Which ranks have not left; one request, and one for each of them every few seconds."""
        now, known = time.monotonic(), self._job.peers()
        if len(known) == self._job.world_size and rounds.count_left(client) >= self._job.world_size:
            self._peers = {}
        elif now - self._looked_at >= _SIGN_SECONDS or self._is_young():
            self._looked_at = now
            if len(known) < self._job.world_size:
                known = self._job.collect(client)
            self._left.update(r for r in known if r not in self._left and rounds.has_left(client, r))
            nobody = {*self._left, *neighbours.gone(self._job), *_ends_with_this_process(self._job)}
            self._peers = {rank: self._peer(client, rank, now) for rank in known if rank not in nobody}

    def _peer(self, client: Client, rank: int, now: float) -> Peer:
        before = self._peers.get(rank) or Peer(0, self._began, None)
        signs = client.add("exit/signs/%d" % rank, 0)
        if signs == before.signs:
            return before
        return Peer(signs, now, parse(client.take("exit/sign/%d" % rank), rank))

    def _has_reason(self) -> bool:
        """Whether to go on; says why not, and every now and then why."""
        now, longest = time.monotonic(), settings.current().exit_wait
        reasons = {rank: why_not(peer, now, self._limits(rank)) for rank, peer in self._peers.items()}
        working = [rank for rank, reason in reasons.items() if not reason]
        seconds = now - self._began
        if not working:
            self._say("ends without waiting for %s" % self._list(list(reasons), reasons))
        elif seconds > longest:
            limit = settings.format_duration(longest)
            self._say(
                "ends after %s (setting exit_wait), though there is still %s"
                % (limit, self._list(working, {}))
            )
        else:
            self._say_progress(seconds, working, longest)
            return True
        return False

    def _limits(self, rank: int) -> Limits:
        node = self._job.peers()[rank]["node"]
        on_node = sum(peer["node"] == node for peer in self._job.peers().values())
        first_sign = _FIRST_SIGN_SECONDS + _MORE_FOR_EACH * on_node
        return Limits(first_sign, settings.current().stall_after, self._counters)

    def _say_progress(self, seconds: float, working: List[int], longest: float) -> None:
        if not self._lines.is_due(seconds):
            return
        until = time.strftime("%m-%d %H:%M:%S", time.localtime(time.time() + longest - seconds))
        self._say(
            "has stayed %dm for %s. Nothing is wrong: it ends with the last of them, and at %s at the latest "
            "(setting exit_wait). Ctrl-C ends it now" % (seconds / 60, self._list(working, {}), until)
        )

    def _list(self, ranks: List[int], reasons: Mapping[int, str]) -> str:
        """``rank 1 (host, pid 7), at eval.py:3 in main``, and how many more there are."""
        rank = ranks[0]
        post = self._peers[rank].post
        doing = ", which %s" % reasons[rank] if rank in reasons else ", %s" % post.where() if post else ""
        more = " and %d more" % (len(ranks) - 1) if len(ranks) > 1 else ""
        return progress.who(self._job, rank) + doing + more

    def _say(self, text: str) -> None:
        console.say("rank %d's program has ended. It hosts the job's store, and %s." % (self._job.rank, text))


def _ends_with_this_process(job: Job) -> List[int]:
    """Ranks that are daemonic children of this process, and would be ended by it after this wait."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return []
    own = job.record["node"]
    daemons = {child.pid for child in multiprocessing.active_children() if child.daemon}
    return [rank for rank, peer in job.peers().items() if peer["node"] == own and peer["pid"] in daemons]
