"""The job as this rank sees it, for the life of its default group.

A *generation* is one life of the default group. Rank 0 draws its name and publishes it inside the
group's own store, so that the keys of two runs, or of two groups of one run, never meet. The others
learn it in the background: with NCCL, ``init_process_group`` returns before the other ranks have come.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
import uuid
from typing import Any, Callable, Dict, List, Optional

from .. import console
from . import identity, records
from .channel import OVER, Channel, Task
from .client import Address, ChannelError, Client

# How long a rank looks for the generation and for the others' records before it acts without them.
_GENERATION_SECONDS = 2.0
_RECORDS_SECONDS = 2.0
_FIRST_POLLS = 100  # every 0.05 s: ranks leave the start of a gloo group within milliseconds
_FIRST_POLL_SECONDS, _LATER_POLL_SECONDS = 0.05, 1.0
_IS_GENERATION = re.compile(r"^[0-9a-f]{12}$")


class Job:
    """One generation of the default group, seen from one rank."""

    def __init__(
        self, address: Address, store: Any, rank: int, world_size: int, meeting: str, number: int = 0
    ) -> None:
        """Open a channel to the store at ``address``.

        ``store``: the group's own, below the group's prefix; ``number``: of the default groups that
        this process has made at this address; ``meeting``: prefix of the keys that need no
        generation.
        """
        self.rank = rank
        self.world_size = world_size
        self.began = time.monotonic()
        self.pid = os.getpid()
        self.record: records.Record = {}
        self.generation = ""  # until it is known
        self._meeting = meeting
        self._known = threading.Event()
        self._agreements: Dict[str, Optional[str]] = {}
        self._peers: Dict[int, records.Record] = {}
        self._last_tasks: List[Task] = []
        self._stops: List[Callable[[], None]] = []
        self._when_closed: List[Callable[[], None]] = []
        self.channel = Channel(address)
        self.channel.submit(lambda client: client.add("%d" % rank, 1), meeting)
        key = _GenerationKey(store, number)
        if rank == 0:
            self.generation = uuid.uuid4().hex[:12]
            self.channel.submit(lambda client: self._begin(key.publish(self.generation)), meeting)
        else:
            self._learn(key)

    def _learn(self, key: _GenerationKey) -> None:
        polls = itertools.count()

        def poll(_: Client) -> Any:
            generation = key.read()
            if generation is None:
                return _FIRST_POLL_SECONDS if next(polls) < _FIRST_POLLS else _LATER_POLL_SECONDS
            self.generation = generation
            self._begin(generation)
            return OVER

        self.channel.every(_FIRST_POLL_SECONDS, poll, self._meeting)

    def _begin(self, generation: str) -> None:
        self.channel.begin("ddp_patches/%s/" % generation)
        self._known.set()

    def hosts_store(self) -> bool:
        """Whether the store ends with this process."""
        return self.rank == 0 and not identity.launcher_hosts_store(os.environ, self.channel.address[1])

    def publish(self, record: records.Record) -> None:
        """Hand this rank's record to the others; a later one replaces it."""
        first, self.record = not self.record, record
        text = records.dump(record)

        def send(client: Client) -> None:
            client.put("record/%d" % self.rank, text)
            client.add("records" if first else "revision", 1)

        self.channel.submit(send)

    def collect(self, client: Client) -> Dict[int, records.Record]:
        """All records that have been published; for the channel's thread."""
        found = {}
        for rank in range(self.world_size):
            record = records.load(client.take("record/%d" % rank), rank)
            if record is not None:
                found[rank] = record
        self._peers = found
        return found

    def peers(self) -> Dict[int, records.Record]:
        """The records as they were last read."""
        return self._peers

    def obstacle(self, patch_id: str, patience: float) -> Optional[str]:
        """Why this job cannot act together on ``patch_id``; None if it can.

        Decided once for all ranks: whoever has looked first (for at most two seconds) writes the
        answer, and all take that one. Ranks that came to different answers would wait for each
        other. The rank that decided says so, once. ``patience``: seconds that a store which does
        not answer (its host is stopped) is waited for; without us the rank would be in its barrier
        for so long. A rank that cannot agree acts as upstream and has the others do so as soon as
        the store answers again.
        """
        if patch_id not in self._agreements:
            self._agreements[patch_id] = "this rank failed to agree"  # also after an exception
            try:
                self._agreements[patch_id] = self._agree(patch_id, patience)
            finally:
                if self._agreements[patch_id] is not None:
                    self.refuse(patch_id)
        return self._agreements[patch_id]

    def refuse(self, patch_id: str) -> None:
        """This rank acts as upstream from now on; the others will see it in ``refusals``."""
        self.channel.submit(lambda client: client.add("refused/" + patch_id, 1))

    def refusals(self, client: Client, patch_id: str) -> int:
        """How many ranks act as upstream, for the channel's thread."""
        return client.add("refused/" + patch_id, 0)

    def _agree(self, patch_id: str, patience: float) -> Optional[str]:
        if not self._known.wait(_GENERATION_SECONDS):
            return self._without_generation(patch_id)
        try:
            opinion = "%s by %d" % (self._opinion(patch_id, patience) or "yes", self.rank)
            answer = self.channel.call(lambda client: client.first("agree/" + patch_id, opinion), patience)
        except ChannelError as error:
            reason = "the store does not answer (%s)" % error
            console.warn("%s acts as upstream in this job: %s." % (patch_id, reason))
            return reason
        reason, _, author = answer.rpartition(" by ")
        if reason == "yes":
            return None
        if author == str(self.rank):
            console.warn("%s acts as upstream in this job: %s." % (patch_id, reason))
        return reason

    def _opinion(self, patch_id: str, patience: float) -> Optional[str]:
        deadline = time.monotonic() + _RECORDS_SECONDS
        while True:
            count = self.channel.call(lambda client: client.add("records", 0), patience)
            if count >= self.world_size or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        found = self.channel.call(self.collect, patience)
        return records.disagreement(found, self.world_size, patch_id)

    def _without_generation(self, patch_id: str) -> str:
        reason = "rank 0 is without ddp_patches, or has not come to init_process_group yet"
        try:
            said = self.channel.call(
                lambda client: client.add("said/" + patch_id, 1), _GENERATION_SECONDS, self._meeting
            )
        except ChannelError as error:
            said, reason = 1, "the store does not answer (%s)" % error
        if said == 1:
            console.warn("%s acts as upstream in this job: %s." % (patch_id, reason))
        return reason

    def before_close(self, task: Task, stop: Optional[Callable[[], None]] = None) -> None:
        """Have ``task(client)`` done last, while the store still answers; call ``stop()`` before that."""
        self._last_tasks.append(task)
        if stop is not None:
            self._stops.append(stop)

    def at_close(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` when the job is closed."""
        self._when_closed.append(callback)

    def take_leave(self, seconds: float) -> None:
        """Do what is to be done last, within about ``seconds``; the channel stays open."""
        began = time.monotonic()
        while self._stops:
            self._stops.pop()()
        last = [self.channel.submit(task) for task in self._last_tasks] if self._known.is_set() else []
        del self._last_tasks[:]
        for pending in last:
            pending.wait(max(0.0, began + seconds - time.monotonic()))

    def close(self, seconds: float, at_exit: bool = False) -> bool:
        """End the channel, at the latest after about ``seconds``; whether its thread has ended."""
        began = time.monotonic()
        self.take_leave(seconds / 4)
        ended = self.channel.close(seconds - (time.monotonic() - began), at_exit)
        while ended and self._when_closed:
            self._when_closed.pop()()
        return ended


class _GenerationKey:
    """The generation's name in the group's own store. Used by the channel's thread."""

    def __init__(self, store: Any, number: int) -> None:
        self._store = store
        self._key = "ddp_patches/generation%d" % number

    def publish(self, generation: str) -> str:
        self._store.set(self._key, generation)
        self._store = None  # or it would outlive the group, and with it the port of its server
        return generation

    def read(self) -> Optional[str]:
        """The name, None while rank 0 has not published one."""
        # Unlike get() this does not wait, and the main thread may need the store.
        found = bytes(self._store.compare_set(self._key, "", "")).decode("ascii", "replace")
        if not _IS_GENERATION.match(found):
            return None
        self._store = None
        return found


_current: Optional[Job] = None


def current() -> Optional[Job]:
    """The job of this process, None outside one and in a child that a rank has forked."""
    return _current if _current is not None and _current.pid == os.getpid() else None


def set_current(job: Optional[Job]) -> None:
    """The default group has been made, or has ended."""
    global _current
    _current = job
