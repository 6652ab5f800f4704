"""From Slurm's variables to torch's: who am I among the tasks of this srun, and where is rank 0?

A pure decision. ``ddp-patches run --from-slurm`` carries it out, once in each task, so everything must
come out equal in all tasks of a step without asking anybody.
"""

from __future__ import annotations

import re
from typing import Mapping, NamedTuple

# Below Linux's range for outgoing connections (32768 and up), above the ports of well-known services
# and of Slurm's own daemons (6817 to 6819).
FIRST_PORT = 12000
LAST_PORT = 29999

# Slurm numbers the batch script itself, salloc's shell and the like from the top of 32 bits.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0

_BY_HAND = "set RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT yourself"


class Decision(NamedTuple):
    """What to set, and what to tell the user; with a ``problem`` there is nothing to set.

    ``notes`` are for this task to print: what holds for all of them comes from rank 0 alone.
    """

    variables: dict[str, str]
    notes: tuple[str, ...] = ()
    problem: str = ""


def decide(environ: Mapping[str, str]) -> Decision:
    """RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT for this task of srun.

    MASTER_ADDR and MASTER_PORT are kept where the user has set them. The four numbers are Slurm's:
    ``export RANK=$SLURM_PROCID`` in a batch script is a common mistake and says 0 in every task.
    """
    step = _number(environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", "")))
    rank = _number(environ.get("SLURM_PROCID", ""))
    local_rank = _number(environ.get("SLURM_LOCALID", ""))
    world_size = _number(environ.get("SLURM_STEP_NUM_TASKS", environ.get("SLURM_NTASKS", "")))
    if _number(environ.get("SLURM_JOB_ID", "")) is None:
        return Decision({}, problem="this is no Slurm job (SLURM_JOB_ID is not set)")
    if step is None or step >= _FIRST_SPECIAL_STEP:
        order = "srun ... ddp-patches run --from-slurm -- python train.py"
        return Decision({}, problem=f"this is no task of srun but the script around it; use: {order}")
    if (_number(environ.get("SLURM_HET_SIZE", environ.get("SLURM_PACK_SIZE", ""))) or 0) > 1:
        return Decision(
            {}, problem=f"a heterogeneous job does not say how many tasks there are in all; {_BY_HAND}"
        )
    if rank is None or local_rank is None or world_size is None or rank >= world_size:
        names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
        seen = ", ".join(f"{name}={environ.get(name, '(not set)')}" for name in names)
        return Decision({}, problem=f"Slurm's variables do not fit together: {seen}; {_BY_HAND}")

    variables = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": str(world_size)}
    local_world_size = _tasks_on_this_node(environ, world_size)
    if local_world_size is not None:
        variables["LOCAL_WORLD_SIZE"] = str(local_world_size)
    notes = [
        f"{name} was {environ[name]}; Slurm's {value} is used"
        for name, value in variables.items()
        if rank == 0 and environ.get(name, value) != value
    ]
    if not environ.get("MASTER_ADDR"):
        try:
            variables["MASTER_ADDR"] = _address_of_rank_0(environ)
        except ValueError as error:
            return Decision({}, problem=f"{error}; set MASTER_ADDR to the host of rank 0")
    if not environ.get("MASTER_PORT"):
        job = int(environ["SLURM_JOB_ID"])
        variables["MASTER_PORT"] = str(port(job, step, _number(environ.get("SLURM_RESTART_COUNT", "")) or 0))
    too_few = _too_few_devices(environ, local_rank)
    return Decision(variables, tuple(notes + [too_few] if too_few else notes))


def port(job: int, step: int, restart: int) -> int:
    """One port for all tasks of a step, another one for the next job, step or restart of this job.

    The steps of one job, and jobs submitted one after the other, often share a node at the same time:
    the factor keeps a job's first hundred steps apart from those of its neighbours, and is prime to the
    size of the range, so that all of it is used.
    """
    size = LAST_PORT - FIRST_PORT + 1
    return FIRST_PORT + (job * 101 + step + restart * 7) % size


def first_host(hosts: str) -> str:
    """The first host of a Slurm list such as ``gpu[003-005,9],login1`` (here ``gpu003``).

    Raises ValueError where the text is no such list.
    """
    outside = re.sub(r"\[[^\[\]]*\]", lambda match: match.group().replace(",", ";"), hosts.strip())
    first = re.sub(r"\[([0-9]+)[^\[\]]*\]", r"\1", outside.split(",")[0])
    if not re.fullmatch(r"[A-Za-z0-9_.:-]+", first):
        raise ValueError(f"{hosts!r} is no list of hosts")
    return first


def tasks_per_node(text: str) -> list[int]:
    """The counts behind Slurm's ``2(x3),1``: one number for each node, here ``[2, 2, 2, 1]``.

    Raises ValueError where the text is nothing of the kind.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ValueError(f"{text!r} is no list of counts")
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return counts


def _tasks_on_this_node(environ: Mapping[str, str], world_size: int) -> int | None:
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", environ.get("SLURM_TASKS_PER_NODE", ""))
    node = _number(environ.get("SLURM_NODEID", ""))
    try:
        counts = tasks_per_node(text)
    except ValueError:
        return None
    # A list that belongs to the job and not to this step tells nothing about the step's tasks.
    return counts[node] if node is not None and node < len(counts) and sum(counts) == world_size else None


def _address_of_rank_0(environ: Mapping[str, str]) -> str:
    # Task 0 runs on the first node of the step, with any distribution but "arbitrary".
    if environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES", "")) == "1":
        return "127.0.0.1"
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environ.get(name):
            return first_host(environ[name])
    raise ValueError("Slurm names no nodes (SLURM_STEP_NODELIST)")


def _too_few_devices(environ: Mapping[str, str], local_rank: int) -> str:
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    count = len([device for device in visible.split(",") if device.strip()])
    if not count or local_rank != count:  # the first on each node that has none speaks for the others
        return ""
    return (
        f"this task sees {count} GPU(s) (CUDA_VISIBLE_DEVICES={visible}) but has local rank {local_rank}; "
        "frameworks ask for the GPU of that number: let each task see all GPUs of its node "
        "(--gpus-per-node or --gres instead of --gpus-per-task; --gpu-bind=none)"
    )


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d+", text.strip()) else None
