"""The job as this rank sees it: from the meeting of the ranks to the end of its default group.

A *generation* is one life of the default group. Rank 0 draws its name and publishes it inside the
group's own store, so that the keys of two runs, or of two groups of one run, never meet.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from typing import Any, Dict, Mapping, Optional

from .. import console
from . import identity, records
from .channel import Address, Channel, ChannelError, Client

_GENERATION_SECONDS = 2.0  # all ranks have just left the group's own start: rank 0 is milliseconds away
_RECORDS_SECONDS = 2.0
_MEETING_LINE_SECONDS = 60.0

_counts: Dict[Address, itertools.count[int]] = {}  # meetings at one address, the same on every rank


def address_of(init_method: Optional[str], store: Any, environ: Mapping[str, str]) -> Optional[Address]:
    """Host and port of the TCPStore that a group is about to use, None where it uses another kind.

    ``store`` is what the caller passed: since torch 1.13 (``underlying_store``) it can be asked.
    """
    for _ in range(8):  # PrefixStores may be nested
        inner = getattr(store, "underlying_store", None)
        if inner is None:
            break
        store = inner
    if store is not None:
        host, port = getattr(store, "host", None), getattr(store, "port", None)
        return (host, int(port)) if host and port else None
    method = init_method or "env://"
    if method.startswith("tcp://"):
        host, _, rest = method[len("tcp://"):].rpartition(":")  # fmt: skip
        digits = rest.partition("?")[0].strip("/")
        return (host.strip("[]"), int(digits)) if host and digits.isdigit() else None
    if not method.startswith("env://"):
        return None
    host, digits = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    return (host, int(digits)) if host and digits.isdigit() else None


class Meeting:
    """The ranks are coming together: says once a minute who is missing."""

    def __init__(self, address: Address, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.address = rank, world_size, address
        self.number = next(_counts.setdefault(address, itertools.count()))
        self._began = time.monotonic()
        self._printed = 0.0
        self.channel = Channel(address, self._store_is_silent)
        self.channel.prefix = "ddp_patches/%s/join%d/" % (identity.run_id(os.environ), self.number)
        self.channel.submit(lambda client: client.add("%d" % rank, 1))
        self._end_lines = self.channel.every(_MEETING_LINE_SECONDS / 12, self._look)

    def _due(self) -> bool:
        elapsed = time.monotonic() - self._began
        if elapsed < self._printed + _MEETING_LINE_SECONDS:
            return False
        self._printed = elapsed
        return True

    def _look(self, client: Client) -> None:
        if not self._due():
            return
        here = [rank for rank in range(self.world_size) if client.add("%d" % rank, 0) > 0]
        missing = [rank for rank in range(self.world_size) if rank not in here]
        if missing and (not here or self.rank == min(here)):
            console.say(
                "init_process_group has waited %dm for %s of %d, which did not announce themselves: not "
                "started yet, stuck before init_process_group, or running without ddp_patches. Store: %s:%d."
                % (self._printed / 60, records.ranks_phrase(missing), self.world_size, *self.address)
            )

    def _store_is_silent(self, seconds: float) -> None:
        if (identity.local_rank_of(os.environ) or 0) == 0 and self._due():
            console.say(
                "init_process_group has waited %dm; the store at %s:%d, which rank 0 or its launcher hosts, "
                "does not answer: is rank 0 running, is the address right, is the port open?"
                % (self._printed / 60, *self.address)
            )

    def give_up(self) -> None:
        """The group was not made."""
        self.channel.close(2.0)

    def joined(self, store: Any) -> Optional[Job]:
        """The group exists: agree on the generation. None if rank 0 names none within two seconds."""
        self._end_lines()
        generation = _generation(store, self.rank, self.number)
        if generation is None:
            self.channel.close(2.0)
            return None
        self.channel.prefix = "ddp_patches/%s/" % generation
        return Job(self.channel, generation, self.rank, self.world_size)


def _generation(store: Any, rank: int, number: int) -> Optional[str]:
    """Rank 0 draws the generation's name, the others read it; through the group's own client."""
    name, ready = "ddp_patches/generation%d" % number, "ddp_patches/generation%d/ready" % number
    if rank == 0:
        drawn = uuid.uuid4().hex[:12]
        store.set(name, drawn)
        store.add(ready, 1)
        return drawn
    deadline = time.monotonic() + _GENERATION_SECONDS
    while store.add(ready, 0) < 1:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)
    return bytes(store.get(name)).decode("ascii", "replace")[:32]


class Job:
    """One generation of the default group, seen from one rank."""

    def __init__(self, channel: Channel, generation: str, rank: int, world_size: int) -> None:
        self.channel = channel
        self.generation = generation
        self.rank = rank
        self.world_size = world_size
        self.pid = os.getpid()
        self.record: records.Record = {}
        self._agreements: Dict[str, Optional[str]] = {}
        self._peers: Dict[int, records.Record] = {}

    def publish(self, record: records.Record) -> None:
        """Hand this rank's record to the others; a later one replaces it."""
        first, self.record = not self.record, record
        text = records.dump(record)

        def send(client: Client) -> None:
            client.put("record/%d" % self.rank, text)
            client.add("record/%d/there" % self.rank, 1)
            client.add("records" if first else "revision", 1)

        self.channel.submit(send)

    def collect(self, client: Client) -> Dict[int, records.Record]:
        """All records that have been published; for the channel's thread."""
        found = {}
        for rank in range(self.world_size):
            # The flag of a record is set with it; asking for a value that is missing would block.
            if client.add("record/%d/there" % rank, 0) < 1:
                continue
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
        other for ever. The rank that decided says so, once. ``patience``: seconds that a store
        which does not answer (its host is stopped) is waited for; without us the rank would be in
        its barrier for so long.
        """
        if patch_id not in self._agreements:
            self._agreements[patch_id] = self._agree(patch_id, patience)
        return self._agreements[patch_id]

    def _agree(self, patch_id: str, patience: float) -> Optional[str]:
        try:
            opinion = self._opinion(patch_id, patience)
            answer = self.channel.call(lambda client: client.first("agree/" + patch_id, opinion), patience)
        except ChannelError as error:
            return "the store does not answer (%s)" % error
        text, _, author = answer.rpartition(" by ")
        if text != "yes" and author == str(self.rank):
            console.warn("%s acts as upstream in this job: %s." % (patch_id, text))
        return None if text == "yes" else text

    def _opinion(self, patch_id: str, patience: float) -> str:
        deadline = time.monotonic() + _RECORDS_SECONDS
        while True:
            count = self.channel.call(lambda client: client.add("records", 0), patience)
            if count >= self.world_size or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        found = self.channel.call(self.collect, patience)
        reason = records.disagreement(found, self.world_size, patch_id)
        return "%s by %d" % (reason or "yes", self.rank)

    def close(self, seconds: float) -> bool:
        """End the channel; whether its thread has ended."""
        return self.channel.close(seconds)


_current: Optional[Job] = None


def current() -> Optional[Job]:
    """The job of this process, None outside one and in a child that a rank has forked."""
    return _current if _current is not None and _current.pid == os.getpid() else None


def set_current(job: Optional[Job]) -> None:
    """The default group has been made, or has ended."""
    global _current
    _current = job
