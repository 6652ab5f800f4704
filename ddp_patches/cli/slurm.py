"""From Slurm's variables to torch's: who am I among the tasks of this srun, and where is rank 0?

A pure decision. ``ddp-patches run --from-slurm`` carries it out, once in each task, so everything must
come out equal in all tasks of a step without asking anybody.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple

from ..runtime import slurm

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
    job, step = slurm.job_of(environ), slurm.step_of(environ)
    rank = slurm.number(environ.get("SLURM_PROCID"))
    local_rank = slurm.number(environ.get("SLURM_LOCALID"))
    world_size = slurm.number(environ.get("SLURM_STEP_NUM_TASKS", environ.get("SLURM_NTASKS")))
    if job is None:
        return Decision({}, problem="this is no Slurm job (SLURM_JOB_ID is not set)")
    if step is None or step >= slurm.FIRST_SPECIAL_STEP:
        order = "srun ... ddp-patches run --from-slurm -- python train.py"
        return Decision({}, problem=f"this is no task of srun but the script around it; use: {order}")
    if slurm.is_heterogeneous(environ):
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
            variables["MASTER_ADDR"] = slurm.address_of_rank_0(environ)
        except ValueError as error:
            return Decision({}, problem=f"{error}; set MASTER_ADDR to the host of rank 0")
    if not environ.get("MASTER_PORT"):
        variables["MASTER_PORT"] = str(slurm.port_of(environ))
    too_few = _too_few_devices(environ, local_rank)
    return Decision(variables, tuple(notes + [too_few] if too_few else notes))


def _tasks_on_this_node(environ: Mapping[str, str], world_size: int) -> int | None:
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", environ.get("SLURM_TASKS_PER_NODE", ""))
    node = slurm.number(environ.get("SLURM_NODEID"))
    try:
        counts = slurm.tasks_per_node(text)
    except ValueError:
        return None
    # A list that belongs to the job and not to this step tells nothing about the step's tasks.
    return counts[node] if node is not None and node < len(counts) and sum(counts) == world_size else None


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
