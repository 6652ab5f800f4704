"""Who this process is in its job, and whether a process of this node is still alive."""

from __future__ import annotations

import os
import socket
from typing import Mapping, Optional


def rank_of(environ: Mapping[str, str]) -> Optional[int]:
    """RANK, or SLURM_PROCID for a task of srun; None outside a job."""
    return _number(environ.get("RANK") or environ.get("SLURM_PROCID"))


def local_rank_of(environ: Mapping[str, str]) -> Optional[int]:
    """LOCAL_RANK, or SLURM_LOCALID for a task of srun."""
    return _number(environ.get("LOCAL_RANK") or environ.get("SLURM_LOCALID"))


def _number(text: Optional[str]) -> Optional[int]:
    try:
        return int(text) if text else None
    except ValueError:
        return None


def node_key() -> str:
    """Equal for two processes exactly if one can look the other's pid up in ``/proc``.

    The boot id tells machines apart, the pid namespace the containers of one machine. Elsewhere
    than on Linux it is the host name.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return "%s %s" % (file.read().strip(), os.readlink("/proc/self/ns/pid"))
    except OSError:
        return socket.gethostname()


def process_state(pid: int) -> Optional[str]:
    """``"<start time> <state letter>"`` of a process of this node, None if it is gone.

    The start time (clock ticks since boot) tells a process from a later one with the same pid. A
    zombie has ended. Raises OSError where there is no ``/proc``.
    """
    if not os.path.isdir("/proc/self"):
        raise OSError("no /proc on this system")
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    state = fields[0].decode()
    return None if state in ("Z", "X") else "%s %s" % (fields[19].decode(), state)


def start_time(pid: int) -> str:
    """Start time of a living process, ``""`` where it cannot be known."""
    try:
        state = process_state(pid)
    except OSError:
        return ""
    return state.split()[0] if state else ""


def has_died(pid: int, started: str) -> bool:
    """Whether a process of this node is gone: its pid is free, or belongs to a later process."""
    try:
        state = process_state(pid)
    except OSError:
        return False
    return state is None or (bool(started) and state.split()[0] != started)


def is_stopped(pid: int) -> bool:
    """Whether a process of this node is stopped by a signal or a debugger."""
    try:
        state = process_state(pid)
    except OSError:
        return False
    return state is not None and state.split()[1] in ("T", "t")


def launcher(environ: Mapping[str, str]) -> str:
    """Who started this process: ``torchrun``, ``slurm``, ``mpi`` or ``environment``."""
    if "TORCHELASTIC_RUN_ID" in environ:
        return "torchrun"
    if "SLURM_PROCID" in environ:
        return "slurm"
    if "OMPI_COMM_WORLD_RANK" in environ or "PMI_RANK" in environ:
        return "mpi"
    return "environment"


def launcher_hosts_store(environ: Mapping[str, str], port: int) -> bool:
    """Whether torchrun hosts the store at ``port``.

    Nearly always. Not on releases before 2.4 with its rendezvous ``c10d``, nor where the program names a
    port of its own.
    """
    agents = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return launcher(environ) == "torchrun" and agents and environ.get("MASTER_PORT") == str(port)


def run_id(environ: Mapping[str, str]) -> str:
    """The launcher's name for this run: torchrun's, or Slurm's job, step and restart count."""
    elastic = environ.get("TORCHELASTIC_RUN_ID")
    if elastic:
        return "%s.%s" % (elastic, environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if "SLURM_JOB_ID" in environ:
        parts = (environ.get(name, "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"))
        return "slurm-" + ".".join(parts)
    return "local"
