"""The limits that a job runs under, and who set them, as far as the environment tells. Imports no torch."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

from ..runtime import identity
from ..settings import Loaded

_BLOCKING_WAIT = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
_ASYNC_ERRORS = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
_HEARTBEAT = (
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_BUFFER_SIZE",
)
_STORE = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "USE_LIBUV")

_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_LAUNCHERS = {
    "torchrun": ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
                 "GROUP_RANK"),
    "slurm": ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "SLURM_PROCID", "SLURM_LOCALID",
              "SLURM_NTASKS", "SLURM_JOB_NODELIST"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK",
            "PMI_SIZE"),
}  # fmt: skip


def limits(environ: Mapping[str, str], loaded: Loaded) -> Dict[str, Any]:
    """Group timeout floor (seconds; None: the caller's), waiting, heartbeat, store and launcher."""
    settings, sources = loaded.settings, loaded.sources
    return {
        "group_timeout": {"floor": settings.timeout, "source": sources["timeout"]},
        "blocking_wait": {
            "value": settings.nccl_blocking_wait,
            "source": sources["nccl_blocking_wait"],
            "variables": chosen(environ, _BLOCKING_WAIT),
        },
        "async_error_handling": {"variables": chosen(environ, _ASYNC_ERRORS)},
        "heartbeat": {"variables": chosen(environ, _HEARTBEAT)},
        "store": {"variables": chosen(environ, _STORE)},
        "launcher": launcher(environ),
    }


def launcher(environ: Mapping[str, str]) -> Dict[str, Any]:
    """Who started this process as a rank: name (empty where nobody did) and the variables it left."""
    name = identity.launcher(environ)
    if name == "environment" and identity.rank_of(environ) is None:
        name = ""
    return {"name": name, "variables": chosen(environ, _RANK + _LAUNCHERS.get(name, ()))}


def chosen(environ: Mapping[str, str], names: Sequence[str]) -> Dict[str, str]:
    """Those of the named variables that are set. Only by name: an environment also holds secrets."""
    return {name: environ[name] for name in names if name in environ}
