"""One rank's wait at one barrier of rank-0-first blocks; see zero_first for the protocol.

Keys below ``zero_first/<number>/``: counters ``come``, ``at/<rank>``, ``lead/<rank>`` (inside a block as
leader), ``notices``, ``failed/<rank>``, ``decided``; texts ``notice/<rank>`` and ``verdict``.
"""

from __future__ import annotations

import functools
import json
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from .. import console, settings
from . import identity, limits, records
from .client import ChannelError, Client
from .job import Job
from .progress import Progress, who

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 1.0
_NOTICE_PAUSE_SECONDS = 0.25
_GRACE_SECONDS = 2.0  # for a leader that catches its exception and tries again
_ROLL_CALL_SECONDS = 5.0  # asking for every single rank costs two requests for each of them
_DEATH_SECONDS = 2.0  # from the end of a process's connections until its pid is free
LONGEST_TEXT = 4000  # characters of a notice


class LeaderFailed(RuntimeError):
    """The rank that went first has raised or died; the message says which, where and why."""


class LeaderTooSlow(TimeoutError):
    """The rank that went first is alive but has not finished within ``zero_first_timeout``."""


class ProtocolLeft(Exception):
    """A rank has gone on to the plain barrier, for good; so does this one."""


class _Seen(NamedTuple):
    """The counters of one look, in the order in which they are read.

    Whoever gives up writes the verdict before it refuses the protocol: read the other way round, a
    rank would follow the refusal and miss the reason.
    """

    refused: int
    decided: int
    notices: int
    come: int


def next_step(seen: _Seen, world_size: int, notice_seconds: float, own_failure: bool) -> str:
    """``go``, ``fail``, ``leave`` or ``wait``.

    ``notice_seconds``: for how long a notice has been standing; ``own_failure``: it is this rank
    whose failure at this barrier the verdict would be about.
    """
    if seen.decided:
        return "leave" if own_failure else "go"  # the verdict that is there counts, whatever it is
    if seen.refused:
        return "leave"
    if seen.come >= world_size:
        return "go"
    return "fail" if seen.notices > 0 and notice_seconds >= _GRACE_SECONDS else "wait"


def patience_is_over(seconds: float, leading: bool, own_limit: float, longest: float) -> Optional[str]:
    """``slow`` or ``leave`` for a wait of ``seconds``, None to go on waiting.

    A living leader that is inside its block gets ``longest``. A rank that is missing and is not
    inside one gets what the group's own limit would have given it.
    """
    if leading:
        return "slow" if seconds > longest else None
    return "leave" if seconds > own_limit else None


class Wait:
    """Used by the main thread."""

    def __init__(self, job: Job, patch_id: str, number: int, own_failure: bool) -> None:
        self._job = job
        self._patch_id = patch_id
        self._own_failure = own_failure
        self._prefix = "zero_first/%d/" % number
        self._began = time.monotonic()
        self._notice_since: Optional[float] = None
        self._next_roll_call = self._began + _ROLL_CALL_SECONDS
        self._progress = Progress(job)

    def until_all_have_come(self) -> None:
        """Raises LeaderFailed, LeaderTooSlow or ProtocolLeft; ChannelError when the store is lost."""
        try:
            self._until_decided()
        except ChannelError:
            self._raise_if_somebody_died()
            raise

    def _until_decided(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        seen = self._ask(self._arrive)
        while True:
            proposal = self._proposal(seen)
            if proposal is not None:
                self._obey(self._ask(functools.partial(self._decide, proposal)))
                return
            time.sleep(pause if self._notice_since is None else _NOTICE_PAUSE_SECONDS)
            pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
            seen = self._ask(self._look)

    def _arrive(self, client: Client) -> _Seen:
        client.add(self._prefix + "at/%d" % self._job.rank, 1)
        client.add(self._prefix + "come", 1)
        return self._look(client)

    def _look(self, client: Client) -> _Seen:
        return _Seen(
            refused=self._job.refusals(client, self._patch_id),
            decided=client.add(self._prefix + "decided", 0),
            notices=client.add(self._prefix + "notices", 0),
            come=client.add(self._prefix + "come", 0),
        )

    def _proposal(self, seen: _Seen) -> Optional[Dict[str, str]]:
        """The verdict that this rank would give, None to wait on. Raises ProtocolLeft."""
        now = time.monotonic()
        self._notice_since = (self._notice_since or now) if seen.notices > 0 else None
        step = next_step(seen, self._job.world_size, now - (self._notice_since or now), self._own_failure)
        if step == "leave":
            raise ProtocolLeft
        if step == "go":
            return {"kind": "go"}
        if step == "fail":
            return {"kind": "failed", "text": self._ask(self._notice)}
        dead = self._dead_peer()
        if dead is not None:
            return {"kind": "failed", "text": _death(self._job, dead)}
        if now < self._next_roll_call:
            return None
        self._next_roll_call = now + _ROLL_CALL_SECONDS
        return self._roll_call(now - self._began)

    def _roll_call(self, seconds: float) -> Optional[Dict[str, str]]:
        missing = self._ask(self._missing)
        leading = [rank for rank in missing if missing[rank]]
        longest = settings.current().zero_first_timeout
        over = patience_is_over(seconds, bool(leading), limits.own_limit(), longest)
        if over == "slow":
            sign = self._ask(lambda client: self._progress.last_sign(client, leading[0]))
            text = "%s has been inside its rank-0-first block for %s, the setting zero_first_timeout%s" % (
                who(self._job, leading[0]), settings.format_duration(longest),
                "; its last sign: %s" % sign.place if sign.place else "",
            )  # fmt: skip
            return {"kind": "slow", "text": text}
        if over == "leave":
            text = (
                "%s did not come to a rank-0-first block within the group's own limit of %s; from here on "
                "these blocks use the plain barrier, as upstream."
                % (records.ranks_phrase(list(missing)), settings.format_duration(limits.own_limit()))
            )
            return {"kind": "leave", "text": text}
        if missing and self._progress.is_due(list(missing)):
            rank = (leading or list(missing))[0]
            self._progress.say(self._ask(lambda client: self._progress.state_of(client, rank)))
        return None

    def _missing(self, client: Client) -> Dict[int, bool]:
        """Ranks that have not come, and whether each is inside a block as leader."""
        found = {}
        for rank in range(self._job.world_size):
            if client.add(self._prefix + "at/%d" % rank, 0) < 1:
                found[rank] = client.add(self._prefix + "lead/%d" % rank, 0) > 0
        return found

    def _decide(self, proposal: Dict[str, str], client: Client) -> str:
        text = json.dumps({**proposal, "by": self._job.rank})
        verdict = client.first(self._prefix + "verdict", text)
        client.add(self._prefix + "decided", 1)
        return verdict

    def _obey(self, verdict: str) -> None:
        said = _parsed(verdict)
        text = console.printable(str(said.get("text", "a leader failed")))[:LONGEST_TEXT]
        if said.get("kind") == "leave":
            if said.get("by") == self._job.rank:
                console.warn(text)
            raise ProtocolLeft
        if said.get("kind") == "slow":
            raise LeaderTooSlow(text)
        if said.get("kind") != "go":
            raise LeaderFailed(text)

    def _notice(self, client: Client) -> str:
        for rank in range(self._job.world_size):
            if client.add(self._prefix + "failed/%d" % rank, 0) > 0:
                said = _parsed(client.take(self._prefix + "notice/%d" % rank))
                return str(said.get("text", "rank %d failed; its notice cannot be read" % rank))
        return "a leader failed"

    def _ask(self, task: Callable[[Client], Any]) -> Any:
        """Have the channel do ``task``; while the store's host is stopped, go on waiting for it."""
        pending = self._job.channel.submit(task)
        while not pending.wait(1.0):
            if time.monotonic() - self._began > settings.current().zero_first_timeout:
                raise ChannelError("the store has not answered within zero_first_timeout")
            if self._progress.is_due(None):
                self._progress.say("the store's host, which does not answer (stopped, or no network)")
        return pending.result()

    def _dead_peer(self) -> Optional[int]:
        """A rank of this node whose process is gone. The other nodes hear of theirs by the verdict."""
        own = self._job.record["node"]
        for rank, peer in self._job.peers().items():
            if peer["node"] == own and identity.has_died(peer["pid"], peer["started"]):
                return rank
        return None

    def _raise_if_somebody_died(self) -> None:
        """A store that is lost has often been lost with the rank that hosted it."""
        deadline = time.monotonic() + _DEATH_SECONDS
        while time.monotonic() < deadline:
            dead = self._dead_peer()
            if dead is not None:
                raise LeaderFailed(_death(self._job, dead))
            time.sleep(0.05)


def _death(job: Job, rank: int) -> str:
    return (
        "%s died while other ranks waited in a rank-0-first block (killed, or its interpreter crashed: see "
        "the launcher's exit codes)" % who(job, rank)
    )


def _parsed(text: str) -> Dict[str, Any]:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def notice_keys(number: int, rank: int) -> List[str]:
    """Of the notice that ``rank`` has failed before barrier ``number``: its text, its flag, the counter."""
    prefix = "zero_first/%d/" % number
    return [prefix + "notice/%d" % rank, prefix + "failed/%d" % rank, prefix + "notices"]


def leading_key(number: int, rank: int) -> str:
    """Counts that ``rank`` is inside a block as leader, with barrier ``number`` next."""
    return "zero_first/%d/lead/%d" % (number, rank)
