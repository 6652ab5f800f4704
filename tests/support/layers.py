"""Framework releases as folders: one on PYTHONPATH, and a test runs against that release."""

from __future__ import annotations

import os
import pathlib

import pytest

from support import environment

# Releases before this one load checkpoints in the way that torch 2.6 and newer refuse by default.
_FIRST_WITH_WEIGHTS_ONLY = (8, 2)


def ultralytics(version: str) -> pathlib.Path:
    """The folder that holds Ultralytics `version` and nothing else. Skips the test where there is none."""
    return layer("ultralytics/" + version)


def layer(name: str) -> pathlib.Path:
    """The folder of an entry of support/releases.py. Skips the test where there is none."""
    if "TEST_LAYERS" not in os.environ:
        pytest.skip("needs the folders that `nox -s live` makes")
    folder = pathlib.Path(os.environ["TEST_LAYERS"], name)
    assert folder.is_dir(), "%s is missing: is the release in support/releases.py?" % folder
    return folder


def openmmlab_environment(folder: pathlib.Path, name: str, **variables: str) -> dict[str, str]:
    """`environment.clean` for a process that imports or trains the packages of layer `name` on the CPU.

    mmcv's compiled ops are stood in for; nothing but `nms` can be called.
    """
    return environment.clean(folder, environment.CPU_VISION, layer(name), **variables)


def ultralytics_environment(folder: pathlib.Path, version: str, **variables: str) -> dict[str, str]:
    """`environment.clean` for a process that imports or trains Ultralytics `version` on the CPU.

    It installs nothing, connects to no other machine, and keeps its settings and weights under `folder`.
    """
    variables = {"YOLO_AUTOINSTALL": "false", **variables}
    if tuple(int(part) for part in version.split(".")[:2]) < _FIRST_WITH_WEIGHTS_ONLY:
        variables["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    return environment.clean(folder, environment.CPU_VISION, ultralytics(version), **variables)
