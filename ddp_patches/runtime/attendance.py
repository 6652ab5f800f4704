"""After a collective has failed: which ranks were in the same call, which in another one, which gave no sign.

Nothing is done before the failure. Each rank whose call fails leaves a note in the job's store and looks for
the notes of the others for a few seconds, in the channel's thread and with a bound.
"""

from __future__ import annotations

import json
import time
from typing import Dict, List, Optional

from . import progress
from .client import ChannelError, Client
from .job import Job

_LOOK_SECONDS = 3.0
_POLL_SECONDS = 0.1
_LONGEST_PLACE = 200  # characters
_SHOWN = 8  # ranks in one sentence


def sentence(job: Optional[Job], name: str, place: str) -> str:
    """What is known of the other ranks when this rank's call of ``name`` at ``place`` has failed.

    Takes up to three seconds. Never raises: it is said beside an error that matters more.
    """
    if job is None:
        return "which ranks did not come is not known: this rank has no connection to the others' notes"
    try:
        return describe(job, _notes(job, name, place), place)
    except (ChannelError, RuntimeError, ValueError) as error:
        return "which ranks did not come is not known (%s)" % error


def describe(job: Job, notes: Dict[int, str], place: str) -> str:
    """Sort the ranks by their notes; ``notes``: place by rank, this rank's own among them."""
    silent = [rank for rank in range(job.world_size) if rank not in notes]
    elsewhere = {rank: other for rank, other in notes.items() if other != place}
    parts = []
    if silent:
        parts.append(
            "no sign of the same failure from %s: not come, or still waiting in it" % _ranks(job, silent)
        )
    parts += ["%s failed at another place, %s" % (_ranks(job, [r]), elsewhere[r]) for r in sorted(elsewhere)]
    return "; ".join(parts) or "all ranks were in this call: the connection between them is at fault"


def _ranks(job: Job, ranks: List[int]) -> str:
    more = len(ranks) - _SHOWN
    shown = [progress.who(job, rank) for rank in ranks[:_SHOWN]]
    return ", ".join(shown) + (" and %d more" % more if more > 0 else "")


def _notes(job: Job, name: str, place: str) -> Dict[int, str]:
    deadline = time.monotonic() + _LOOK_SECONDS
    text = json.dumps({"place": place[:_LONGEST_PLACE]})

    def leave(client: Client) -> None:
        client.put("failed/%s/%d" % (name, job.rank), text)
        client.add("failed/" + name, 1)

    job.channel.call(leave, _LOOK_SECONDS)
    while time.monotonic() < deadline:
        count = job.channel.call(lambda client: client.add("failed/" + name, 0), _LOOK_SECONDS)
        if count >= job.world_size:
            break
        time.sleep(_POLL_SECONDS)

    def read(client: Client) -> Dict[int, str]:
        job.collect(client)  # so that hosts and pids are known
        texts = {rank: client.take("failed/%s/%d" % (name, rank)) for rank in range(job.world_size)}
        return {rank: _place(text) for rank, text in texts.items() if text}

    found: Dict[int, str] = job.channel.call(read, _LOOK_SECONDS)
    return found


def _place(text: str) -> str:
    try:
        return str(json.loads(text)["place"])[:_LONGEST_PLACE]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "an unknown place"
