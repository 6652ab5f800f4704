"""What Slurm's variables tell a task of srun: its step, the host of rank 0, ports for all tasks.

Pure decisions. Every task makes them by itself, so they must come out equal in all tasks of a step.
"""

from __future__ import annotations

import re
from typing import List, Mapping, NamedTuple, Optional, Tuple

# Below Linux's range for outgoing connections (32768 and up) and torch's default port (29500), above the
# ports of well-known services and of Slurm's own daemons (6817 to 6819).
FIRST_PORT = 12000
LAST_PORT = 29499

# From a step's own port to those on which its rank 0 may answer. Prime to the size of the range, and no
# neighbour's: see `port`.
_BEACON_STRIDE = 6007
_BEACONS = 3

# Slurm numbers the batch script itself, salloc's shell and the like from the top of 32 bits.
FIRST_SPECIAL_STEP = 0xFFFFFFF0


def number(text: Optional[str]) -> Optional[int]:
    """A rank, a count or an id from a variable; None where there is none."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]+", text.strip()) else None


def job_of(environ: Mapping[str, str]) -> Optional[int]:
    """The job's number, None outside a job. Each task of an array has one of its own."""
    return number(environ.get("SLURM_JOB_ID", environ.get("SLURM_JOBID")))


def step_of(environ: Mapping[str, str]) -> Optional[int]:
    """The number of the step, that is of the srun within the job."""
    return number(environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID")))


def is_heterogeneous(environ: Mapping[str, str]) -> bool:
    """Whether the job has several components: each has its own job number and counts its own tasks."""
    return (number(environ.get("SLURM_HET_SIZE", environ.get("SLURM_PACK_SIZE"))) or 0) > 1


class Step(NamedTuple):
    """What tells this run of a step from every other one, and is the same in all its tasks."""

    job: int
    step: int
    restart: int


def own_step(environ: Mapping[str, str]) -> Optional[Step]:
    """This task's; None where the variables do not name one job for all tasks."""
    job = job_of(environ)
    if job is None or is_heterogeneous(environ):
        return None
    return Step(job, step_of(environ) or 0, number(environ.get("SLURM_RESTART_COUNT")) or 0)


def port_of(environ: Mapping[str, str]) -> Optional[int]:
    """:func:`port` for this task's step; None where the variables do not name one job for all tasks."""
    step = own_step(environ)
    return None if step is None else port(*step)


def port(job: int, step: int, restart: int) -> int:
    """One port for all tasks of a step, another one for the next job, step or restart of this job.

    The steps of one job, and jobs submitted one after the other, often share a node at the same time:
    the factor keeps a job's first hundred steps apart from those of its neighbours, and is prime to the
    size of the range, so that all of it is used.
    """
    size = LAST_PORT - FIRST_PORT + 1
    return FIRST_PORT + (job * 101 + step + restart * 7) % size


def beacon_ports(step: Step) -> Tuple[int, ...]:
    """Where rank 0 of the step may answer, first choice first. The step's own port is none of them."""
    size = LAST_PORT - FIRST_PORT + 1
    own = port(*step) - FIRST_PORT
    return tuple(FIRST_PORT + (own + number * _BEACON_STRIDE) % size for number in range(1, _BEACONS + 1))


def address_of_rank_0(environ: Mapping[str, str]) -> str:
    """The host of task 0. Raises ValueError where Slurm names no nodes."""
    # Task 0 runs on the first node of the step, with any distribution but "arbitrary".
    if environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES", "")) == "1":
        return "127.0.0.1"
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environ.get(name):
            return first_host(environ[name])
    raise ValueError("Slurm names no nodes (SLURM_STEP_NODELIST)")


def first_host(hosts: str) -> str:
    """The first host of a Slurm list such as ``gpu[003-005,9],login1`` (here ``gpu003``).

    Raises ValueError where the text is no such list.
    """
    outside = re.sub(r"\[[^\[\]]*\]", lambda match: match.group().replace(",", ";"), hosts.strip())
    first = re.sub(r"\[([0-9]+)[^\[\]]*\]", r"\1", outside.split(",")[0])
    if not re.fullmatch(r"[A-Za-z0-9_.:-]+", first):
        raise ValueError("%r is no list of hosts" % hosts)
    return first


def tasks_per_node(text: str) -> List[int]:
    """The counts behind Slurm's ``2(x3),1``: one number for each node, here ``[2, 2, 2, 1]``.

    Raises ValueError where the text is nothing of the kind.
    """
    counts: List[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ValueError("%r is no list of counts" % text)
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return counts
