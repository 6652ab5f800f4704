"""The other ranks of this rank's node whose processes are gone or stopped: they cannot answer themselves."""

from __future__ import annotations

from typing import Dict

from .. import identity, memory, progress
from ..job import Job


def absent(job: Job) -> Dict[int, str]:
    """What is known, by rank: ``is gone (host, pid 4711): its process has ended``."""
    found = {}
    for rank, peer in job.peers().items():
        if rank == job.rank or peer["node"] != job.record["node"]:
            continue
        name = progress.who(job, rank).partition(" (")[2].rstrip(")")
        if identity.has_died(peer["pid"], peer["started"]):
            found[rank] = "is gone (%s): its process has ended%s" % (name, memory.killed_phrase())
        elif identity.is_stopped(peer["pid"]):
            found[rank] = "is stopped (%s): SIGSTOP or a debugger; `kill -CONT %d` lets it go on" % (
                name,
                peer["pid"],
            )
    return found
