"""What the tests run on, as matrix/cells.json lists it. Read by the tests and by noxfile.py."""

from __future__ import annotations

import json
import pathlib
from typing import Any

_FILE = pathlib.Path(__file__).parents[1] / "matrix" / "cells.json"
_DATA: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))

# By name; what the fields mean is said in the file.
ENVIRONMENTS: dict[str, dict[str, Any]] = _DATA["environments"]
RELEASES: dict[str, dict[str, Any]] = _DATA["releases"]

NEWEST: dict[str, dict[str, Any]] = _DATA["newest"]

# The environment in which every release is tested.
CURRENT = "torch-2.13"

TORCH, TORCHVISION = (
    requirement.partition("==")[2]
    for requirement in [
        *ENVIRONMENTS[CURRENT]["requirements"],
        *ENVIRONMENTS[CURRENT]["without_dependencies"],
    ]
    if requirement.startswith(("torch==", "torchvision=="))
)

# One Ultralytics release for each way in which the code that we patch was written, oldest first; and what
# tells it from the one before.
ULTRALYTICS = {
    name.partition("/")[2]: release["why"]
    for name, release in RELEASES.items()
    if name.startswith("ultralytics/")
}
NEWEST_ULTRALYTICS = list(ULTRALYTICS)[-1]


def cells() -> list[dict[str, Any]]:
    """All cells, those of the releases last; each with its name, environment, Python and what is run."""
    found = [dict(cell) for cell in _DATA["cells"]]
    for name, release in RELEASES.items():
        everyday = release.get("everyday", False)
        cell = {"run": ["tests/live"], "release": name}
        found.append({"name": name, "environment": CURRENT, **cell, "everyday": everyday})
        for environment, instead in release.get("elsewhere", {}).items():
            own = {"name": "%s, %s" % (name, environment), "environment": environment, "instead": instead}
            found.append({**own, **cell})
    return _with_python(found)


def newest_cells() -> list[dict[str, Any]]:
    """The cells of `nox -s newest`: the newest torch, and the newest release in the place of a known one."""
    found: list[dict[str, Any]] = [
        {"name": "newest torch", "run": ["tests/distributed"]},
        {"name": "newest torch, live", "run": ["tests/live"], "without_release": True},
    ]
    for name in NEWEST:
        package = name.partition("/")[2] if name.endswith("/onedl") else name.partition("/")[0]
        cell = {"name": "newest " + package, "run": ["tests/live"], "release": name}
        found.append({**cell, "instead": NEWEST[name], "newest": True})
    return _with_python([{**cell, "environment": "newest"} for cell in found])


def _with_python(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for cell in found:
        cell.setdefault("python", ENVIRONMENTS[cell["environment"]].get("python"))
    return found


def needed(name: str) -> list[str]:
    """The releases that the tests about release `name` use: itself, and others beside it."""
    return [name, *RELEASES[name].get("with", [])]
