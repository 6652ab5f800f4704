"""Write down, for the package itself, which releases may be called tested; and patches.md, which names them.

    python tests/matrix/passed.py

A release has passed when every cell that installs it has: mmcv's own cell runs nothing but its Config, and
what our patches do to mmcv is run by the cell of the mmdet that needs it. So a cell that has failed, or has
never been run, leaves all releases that it is about without the word.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Iterator

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from packaging.version import Version

from matrix import results
from support import releases

ROOT = pathlib.Path(__file__).parents[2]
FILE = ROOT / "ddp_patches" / "engine" / "passed.json"
PAGE = ROOT / "patches.md"


def releases_of(cell: dict[str, Any]) -> set[tuple[str, str]]:
    """The releases that a cell is about, by import name: its frameworks', or its torch where it has none."""
    if "release" in cell:
        entry, is_meant = releases.RELEASES[cell["release"]], results.is_framework
    else:
        entry, is_meant = releases.ENVIRONMENTS[cell["environment"]], _is_torch
    requirements = [*entry["requirements"], *entry.get("without_dependencies", ()), entry.get("unpacked", "")]
    pinned = [requirement.partition("==") for requirement in requirements]
    return {(results.import_name(name), version) for name, _, version in pinned if version and is_meant(name)}


def _is_torch(distribution: str) -> bool:
    return distribution == "torch"


def passed() -> dict[str, list[str]]:
    """For each package of the cells its releases that have passed, oldest first."""
    found: dict[str, list[str]] = {}
    cells_of: dict[tuple[str, str], list[str]] = {}
    for cell in releases.cells():
        for release in releases_of(cell):
            cells_of.setdefault(release, []).append(cell["name"])
    for (package, version), cells in sorted(cells_of.items(), key=lambda item: Version(item[0][1])):
        known = found.setdefault(package, [])
        if all(_has_passed(cell, package, version) for cell in cells):
            known.append(version)
    return dict(sorted(found.items()))


def _has_passed(cell: str, package: str, version: str) -> bool:
    """Whether a cell has passed with a release, and has failed with it on no machine."""
    outcomes = {
        row["outcome"]
        for row in results.rows()
        if row["cell"] == cell and (package, version) in installed(row)
    }
    return results.PASSED in outcomes and results.FAILED not in outcomes


def installed(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a row's cell had of torch and the frameworks, by import name, without local parts (`+cpu`)."""
    for name, version in {"torch": row.get("torch", ""), **row.get("frameworks", {})}.items():
        yield results.import_name(name), version.partition("+")[0]


def text() -> str:
    """What belongs into the file."""
    return json.dumps(passed(), indent=1) + "\n"


def main() -> None:
    """Write both files."""
    FILE.write_text(text(), encoding="utf-8")
    command = [sys.executable, "-m", "ddp_patches", "list", "--markdown"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DDP_PATCHES": "0"}
    page = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=60)
    PAGE.write_bytes(page.stdout)


if __name__ == "__main__":
    main()
