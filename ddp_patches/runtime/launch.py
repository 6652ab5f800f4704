"""Which device a rank takes, and what is left open of where the ranks of a Slurm step meet. Pure decisions.

A launcher is named as OpenMMLab names it: ``pytorch``, ``slurm`` or ``mpi``.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from . import slurm

LOCAL_RANK = {"pytorch": "LOCAL_RANK", "slurm": "SLURM_LOCALID", "mpi": "OMPI_COMM_WORLD_LOCAL_RANK"}


def device_index(launcher: str, asked: int, environ: Mapping[str, str], device_count: int) -> int:
    """The index of this rank's device among those that the process sees.

    Args:
        asked: what upstream would take; it stays where nothing better is known.
        device_count: devices that the process sees, 0 if that is unknown.
    """
    local_rank = slurm.number(environ.get(LOCAL_RANK.get(launcher, "")))
    if local_rank is None or device_count <= 0:
        return asked
    if local_rank < device_count:
        return local_rank
    return local_rank % device_count if has_devices_of_its_own(environ, device_count) else asked


def names_device_by_local_rank(launcher: str, environ: Mapping[str, str], device_count: int) -> bool:
    """Whether LOCAL_RANK has to become the index of the device: there OpenMMLab's runners look for DDP's.

    Upstream's Slurm launchers write it for that purpose. Behind mpirun nobody does, and train.py leaves 0
    there on every rank. What torchrun wrote is left alone.
    """
    return launcher != "pytorch" or has_devices_of_its_own(environ, device_count)


def has_devices_of_its_own(environ: Mapping[str, str], device_count: int) -> bool:
    """Whether the ``device_count`` devices seen by this process are its own and not those of its node.

    If they are the node's, and fewer than its ranks, two ranks would share one: upstream's error is
    better than that.
    """
    if "TORCHELASTIC_RUN_ID" in environ:
        return False  # torchrun gives the ranks of a node one environment
    if "SLURM_GPUS_PER_TASK" in environ or "gpu" in environ.get("SLURM_TRES_PER_TASK", ""):
        return True
    on_node = slurm.number(environ.get("SLURM_GPUS_ON_NODE"))
    return device_count < on_node if on_node is not None else device_count == 1


def open_step(environ: Mapping[str, str], port: Any) -> Optional[slurm.Step]:
    """The step of srun whose tasks have to agree on a port; None where nothing is left to choose.

    ``port``: the caller's argument. It and what the environment has are kept, as upstream does.
    """
    return None if port is not None or "MASTER_PORT" in environ else slurm.own_step(environ)


def address_to_set(environ: Mapping[str, str], has_scontrol: bool) -> Dict[str, str]:
    """What to set of MASTER_ADDR before upstream's Slurm launcher looks for it.

    Without scontrol upstream would take the shell's "not found" for the host of rank 0.
    """
    if "MASTER_ADDR" in environ or has_scontrol:
        return {}
    try:
        return {"MASTER_ADDR": slurm.address_of_rank_0(environ)}
    except ValueError:
        return {}
