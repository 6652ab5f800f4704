"""Framework releases as folders: one on PYTHONPATH, and a test runs against that release."""

from __future__ import annotations

import os
import pathlib

import pytest

from support import environment, releases

# Releases before this one load checkpoints in the way that torch 2.6 and newer refuse by default.
_FIRST_WITH_WEIGHTS_ONLY = (8, 2)


# The releases that the running test is marked with, as tests/live/conftest.py finds them.
declared: set[str] = set()


def ultralytics(version: str) -> pathlib.Path:
    """The folder that holds Ultralytics `version` and nothing else. Skips the test where there is none."""
    return layer("ultralytics/" + version)


def layer(name: str) -> pathlib.Path:
    """The folder of a release of matrix/cells.json. Skips the test where there is none."""
    allowed = {needed for release in declared for needed in releases.needed(release)}
    assert name in allowed, "a test that uses %s has to be marked with it, or it is in no cell" % name
    if "TEST_LAYERS" not in os.environ:
        pytest.skip("needs the folders that `nox` makes")
    folder = pathlib.Path(os.environ["TEST_LAYERS"], name)
    assert folder.is_dir(), "%s is missing: is the release in matrix/cells.json?" % folder
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
