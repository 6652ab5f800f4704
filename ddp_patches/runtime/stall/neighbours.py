"""The other ranks of this rank's node whose processes are gone or stopped: they cannot answer themselves."""

from __future__ import annotations

from typing import Dict

from .. import identity, memory, progress, records
from ..job import Job


def absent(job: Job) -> Dict[int, str]:
    """What is known, by rank: ``is gone (host, pid 4711): its process has ended``."""
    found = gone(job)
    for rank, peer in _of_this_node(job).items():
        if rank not in found and identity.is_stopped(peer["pid"]):
            found[rank] = "is stopped (%s): SIGSTOP or a debugger; `kill -CONT %d` lets it go on" % (
                progress.host_and_pid(job, rank),
                peer["pid"],
            )
    return found


def gone(job: Job) -> Dict[int, str]:
    """The same of those alone whose processes have ended."""
    return {
        rank: "is gone (%s): its process has ended%s"
        % (progress.host_and_pid(job, rank), memory.killed_phrase())
        for rank, peer in _of_this_node(job).items()
        if identity.has_died(peer["pid"], peer["started"])
    }


def _of_this_node(job: Job) -> Dict[int, records.Record]:
    found = job.peers().items()
    return {rank: peer for rank, peer in found if rank != job.rank and peer["node"] == job.record["node"]}
