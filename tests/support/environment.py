"""The environment of the processes that tests start: nothing inherited that could decide a test's outcome."""

from __future__ import annotations

import os
import pathlib
import sys
import sysconfig

import ddp_patches

TESTS = pathlib.Path(__file__).parents[1]
CPU_VISION = TESTS / "standins" / "cpu_vision"

# What a launcher, a job scheduler or a user's shell may have set.
_DROPPED_PREFIXES = (
    "DDP_PATCHES",
    "GLOO_",
    "MASTER_",
    "NCCL_",
    "OMPI_",
    "PMI_",
    "SLURM_",
    "TORCH",
    "YOLO_",
)
_DROPPED = {
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "PYTHONPATH",
    "RANK",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "WORLD_SIZE",
}


def clean(folder: pathlib.Path, *python_path: object, **variables: str) -> dict[str, str]:
    """Return a copy of this process's environment, without launchers' and our own variables.

    Whatever a process leaves behind lies under `folder`. PYTHONPATH becomes `python_path`, followed by the
    folder of the package when that is not installed; `variables` are added at the end.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED and not name.startswith(_DROPPED_PREFIXES)
    }
    environment.update(
        CUDA_VISIBLE_DEVICES="",
        GLOO_SOCKET_IFNAME="lo" if sys.platform == "linux" else "lo0",
        OMP_NUM_THREADS="1",  # several ranks share the machine
        PYTHONFAULTHANDLER="1",  # a process that is aborted because it hangs shows where
        XDG_STATE_HOME=str(folder / "state"),
        YOLO_CONFIG_DIR=str(folder / "yolo"),
        YOLO_OFFLINE="true",
    )
    paths = [*map(str, python_path), *_source_tree()]
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment.update(variables)
    return environment


def _source_tree() -> list[str]:
    """The folder to add so that a child finds the package, when the tests run without installing it."""
    folder = str(pathlib.Path(ddp_patches.__file__).resolve().parents[1])
    installed = {os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return [] if folder in installed else [folder]
