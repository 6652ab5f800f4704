"""The ranks come together in ``init_process_group``: says once a minute who is missing."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any, Dict, List, Mapping, Optional

from .. import console, settings
from . import identity, records
from .channel import Channel
from .client import Address, ChannelError, Client
from .job import Job

_LINE_SECONDS = 60.0
_CLOSE_SECONDS = 2.0

# In the store, without a prefix: the run whose ranks meet there. Who does not belong to it can tell.
RUN_KEY = "ddp_patches/run"

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
    """One call of ``init_process_group``."""

    def __init__(self, address: Address, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.address = rank, world_size, address
        self._number = next(_counts.setdefault(address, itertools.count()))
        run = identity.run_id(os.environ)
        self._prefix = "ddp_patches/%s/join%d/" % (run, self._number)
        self._began = time.monotonic()
        self._printed = 0.0
        self._missing: List[int] = []  # when they were last looked for
        self._is_first = False  # of those that are here
        self._channel = Channel(address, self._store_is_silent)
        self._channel.submit(lambda client: client.first(RUN_KEY, run), "")
        self._channel.submit(lambda client: client.add("%d" % rank, 1), self._prefix)
        self._channel.every(_LINE_SECONDS / 12, self._look, self._prefix)

    def _due(self) -> bool:
        elapsed = time.monotonic() - self._began
        if elapsed < self._printed + _LINE_SECONDS:
            return False
        self._printed = elapsed
        return True

    def _look(self, client: Client) -> None:
        is_due = self._due()
        if is_due or self.rank == 0:  # which may host the store, and then cannot ask it in the end
            self._ask(client)
        if is_due and self._missing and self._is_first:
            console.say("init_process_group has waited %dm for %s." % (self._printed / 60, self._who()))

    def _ask(self, client: Client) -> None:
        here = [rank for rank in range(self.world_size) if client.add("%d" % rank, 0) > 0]
        self._missing = [rank for rank in range(self.world_size) if rank not in here]
        self._is_first = not here or self.rank == min(here)

    def _who(self) -> str:
        return (
            "%s of %d, which did not announce themselves: not started yet, stuck before init_process_group, "
            "or running without ddp_patches. Store: %s:%d"
            % (records.ranks_phrase(self._missing), self.world_size, *self.address)
        )

    def _store_is_silent(self, seconds: float) -> None:
        if (identity.local_rank_of(os.environ) or 0) == 0 and self._due():
            console.say(
                "init_process_group has waited %dm; the store at %s:%d, which rank 0 or its launcher hosts, "
                "does not answer: is rank 0 running, is the address right, is the port open?"
                % (self._printed / 60, *self.address)
            )

    def over(self) -> None:
        """The group exists: nothing more is said."""
        self._channel.close(_CLOSE_SECONDS)

    def failed(self) -> None:
        """The group was not made. Takes up to two seconds, and as long again to close the channel."""
        try:
            self._channel.call(self._ask, _CLOSE_SECONDS, self._prefix)
        except (ChannelError, RuntimeError):
            pass  # what was seen last counts
        if self._missing and self._is_first:
            seconds = settings.format_duration(round(time.monotonic() - self._began))
            console.say("init_process_group failed after %s without %s." % (seconds, self._who()))
        self.over()

    def job(self, store: Any) -> Job:
        """The job of the group that has been made; ``store`` is the group's own.

        It gets a connection of its own: which sockets belong to this one cannot be told, because
        the main thread opened its own ones to the same address meanwhile.
        """
        return Job(self.address, store, self.rank, self.world_size, self._prefix, self._number)
