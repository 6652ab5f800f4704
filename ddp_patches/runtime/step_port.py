"""On which port the tasks of a Slurm step meet, where nobody has said one.

Without us it is 29500, if that is free. So it is with us, and a job meets in which only some ranks have us.
Where 29500 is taken on rank 0's host, ranks without us cannot meet; those with us do, on another port.

Rank 0 decides and tells the others (``beacon``). Whoever waits for its word cannot know whether it is late
or without us, and looks at port 29500 of its host meanwhile. Where that accepts connections for a while and
rank 0 still says nothing, rank 0 hosts its store there and will never say anything.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import sys
import time
from typing import List, Mapping, Optional, Tuple

from .. import console, settings
from . import beacon, identity, port, progress, slurm
from .channel import Channel
from .client import Address, ChannelError, Client
from .meeting import RUN_KEY

UPSTREAMS_PORT = 29500  # torch's default, which OpenMMLab takes

# How long that port has to accept connections until it is taken for rank 0's store. Another job's may be
# there. One that was there before us says less than one that came while we waited, and rank 0 of this job
# is then given more time to come: its ranks seldom start further apart.
CAME_SECONDS, STOOD_SECONDS = 10.0, 30.0

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 2.0
_CONNECT_SECONDS = 1.0
_STORE_SECONDS = 5.0  # for a store's answer


class Place:
    """Rank 0's choice, held until ``let_go()``: the port, and the beacon that names it."""

    def __init__(self, step: slurm.Step) -> None:
        """Raises OSError where no port is free on which the others could hear of the choice."""
        self._held: List[socket.socket] = []
        self.port = UPSTREAMS_PORT
        if not (self._claim(UPSTREAMS_PORT) and is_free(UPSTREAMS_PORT)):
            self.port = self._another(slurm.port(*step))
        try:
            self._beacon = beacon.Beacon(slurm.beacon_ports(step), beacon.line(step, self.port))
        except OSError:
            self._close()
            raise

    def _claim(self, number: int) -> bool:
        """Keep the jobs of this machine apart that look at a port in the same moment; False: another has it.

        By a name in Linux's abstract namespace, which like the ports belongs to the network namespace, and
        is free again when the process has ended. The port itself cannot be kept for a while after a store
        has been there.
        """
        if sys.platform == "linux":
            claim = socket.socket(socket.AF_UNIX)
            self._held.append(claim)
            try:
                claim.bind("\0ddp_patches port %d" % number)
            except OSError as error:
                return error.errno != errno.EADDRINUSE
        return True

    def _another(self, own: int) -> int:
        if not port.is_possible():
            return own
        keeper = port.keep(own)
        if keeper is None:
            own, keeper = port.keep_another()
        self._held.append(keeper)
        return own

    def let_go(self) -> None:
        """The ranks have met, or will not. Nobody asks any more: a store waits until all ranks have come."""
        self._beacon.stop()
        self._close()

    def _close(self) -> None:
        for held in self._held:
            held.close()


def is_free(number: int) -> bool:
    """Whether nobody listens on the port at this host's addresses: upstream's own test."""
    try:
        addresses = socket.gethostbyname_ex(socket.gethostname())[2]
    except OSError:  # the host does not know its own name
        addresses = []
    return not any(accepts((address, number)) for address in [*addresses, "127.0.0.1"])


def accepts(address: Address) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


class Sightings:
    """What the looks at upstream's port have shown; the times are passed in. Decides, and does nothing."""

    def __init__(self) -> None:
        self._accepts_since: Optional[float] = None
        self._was_closed = False
        self._unanswered = 0  # by a store
        self.is_anothers = False

    def note(self, now: float, accepted: bool) -> None:
        """One look."""
        if not accepted:
            self._was_closed, self._accepts_since = True, None
            self._unanswered, self.is_anothers = 0, False
        elif self._accepts_since is None:
            self._accepts_since = now

    def seconds(self, now: float) -> float:
        """For how long it has accepted connections at every look, or since no store has answered there."""
        return 0.0 if self._accepts_since is None else now - self._accepts_since

    def is_due(self, now: float) -> bool:
        """Whether it looks like rank 0's, so that the store there is to be asked."""
        if self._accepts_since is None or self.is_anothers:
            return False
        patience = CAME_SECONDS if self._was_closed else STOOD_SECONDS
        return self.seconds(now) >= patience * 2**self._unanswered

    def judge(self, now: float, written: Optional[str], own_run: str) -> bool:
        """Whether the job meets there.

        Args:
            written: what the store says at RUN_KEY; ``""``: nothing, so nobody there has us; None: no store
                has answered.
        """
        if written is None:
            # Asked again after twice as long, for torch writes a page about each such attempt.
            self._accepts_since, self._unanswered = now, self._unanswered + 1
            return False
        self.is_anothers = written not in ("", own_run)
        return not self.is_anothers


def speaks(environ: Mapping[str, str]) -> bool:
    """Whether this rank says what is waited for: the first of its node; rank 1, since 0 may be without us."""
    return environ.get("SLURM_PROCID") == "1" or environ.get("SLURM_LOCALID") == "0"


class Search:
    """A rank other than 0 looks for the port."""

    def __init__(self, host: str, step: slurm.Step, limit: float) -> None:
        """``limit``: seconds after which it is given up."""
        self._host, self._step, self._limit = host, step, limit
        self._run = identity.run_id(os.environ)
        self._sightings = Sightings()
        self._began = time.monotonic()
        self._lines = progress.Lines()

    def port(self) -> Optional[int]:
        """The port, None when the limit is over."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            for number in slurm.beacon_ports(self._step):
                told = beacon.ask((self._host, number), self._step)
                if told is not None:
                    return told
            now = time.monotonic()
            self._sightings.note(now, accepts((self._host, UPSTREAMS_PORT)))
            if self._sightings.is_due(now) and self._is_rank_0s(now):
                return UPSTREAMS_PORT
            if now - self._began >= self._limit:
                limit = settings.format_duration(round(self._limit))
                self._say("has said nothing for %s" % limit, "; this rank goes on as upstream")
                return None
            self._say_progress(now)
            # Not all ranks at once: a large job has thousands. Python's own generator is the program's.
            time.sleep(pause * random.SystemRandom().uniform(0.5, 1.0))
            pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)

    def _is_rank_0s(self, now: float) -> bool:
        written, is_first = self._look_into_store()
        seconds = self._sightings.seconds(now)
        if not self._sightings.judge(now, written, self._run):
            return False
        if is_first:
            console.warn(
                "rank 0 of this Slurm step runs without ddp_patches, it seems: port %d of %s has accepted "
                "connections for %ds, and rank 0 says nothing. The job meets there, as without ddp_patches. "
                "MASTER_PORT sets a port for all tasks." % (UPSTREAMS_PORT, self._host, seconds)
            )
        return True

    def _look_into_store(self) -> Tuple[Optional[str], bool]:
        """What stands at RUN_KEY on upstream's port, and whether nothing does and this rank asks first."""

        def look(client: Client) -> Tuple[str, bool]:
            written = client.take(RUN_KEY)
            return written, not written and client.add("ddp_patches/%s/asked" % self._run, 1) == 1

        channel = Channel((self._host, UPSTREAMS_PORT))
        try:
            found: Tuple[str, bool] = channel.call(look, _STORE_SECONDS, "")
            return found
        except (ChannelError, RuntimeError, ValueError, MemoryError):
            return None, False
        finally:
            channel.close(_STORE_SECONDS)

    def _say_progress(self, now: float) -> None:
        if self._lines.is_due(now - self._began):
            minutes = (now - self._began) / 60
            self._say("has said nothing for %dm: not started yet, or without ddp_patches" % minutes, "")

    def _say(self, what: str, then: str) -> None:
        if not speaks(os.environ):
            return
        state = "accepts no connections"
        if self._sightings.seconds(time.monotonic()):
            state = "is another job's" if self._sightings.is_anothers else "accepts connections"
        asked = ", ".join(map(str, slurm.beacon_ports(self._step)))
        console.say(
            "waiting for rank 0 of this Slurm step to say where the job meets. It %s (%s, ports %s; port %d "
            "%s)%s." % (what, self._host, asked, UPSTREAMS_PORT, state, then)
        )
