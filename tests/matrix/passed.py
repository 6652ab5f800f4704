"""Write down, for the package itself, which releases may be called tested; and patches.md, which names them.

    python tests/matrix/passed.py

A release has passed when every cell that installs it has: mmcv's own cell runs nothing but its Config, and
what our patches do to mmcv is run by the cell of the mmdet that needs it. So a cell that has failed, or has
never been run, leaves all releases that it is about without the word, and out of the README's table.
`nox -s newest` gives no release the word and takes it from none: it has to become a cell first.
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
        entry = {**releases.RELEASES[cell["release"]], **cell.get("instead", {})}
        is_meant = results.is_framework
    else:
        entry = releases.ENVIRONMENTS[cell["environment"]]
        is_meant = _is_torch
    requirements = [*entry["requirements"], *entry.get("without_dependencies", ()), entry.get("unpacked", "")]
    pinned = [requirement.partition("==") for requirement in requirements]
    return {(results.import_name(name), version) for name, _, version in pinned if version and is_meant(name)}


def _is_torch(distribution: str) -> bool:
    return distribution == "torch"


def passed(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """For each package of the cells its releases that have passed, oldest first."""
    cells_of: dict[tuple[str, str], list[str]] = {}
    for cell in releases.cells():
        for release in releases_of(cell):
            cells_of.setdefault(release, []).append(cell["name"])
    found: dict[str, list[str]] = {package: [] for package, _ in sorted(cells_of)}
    for release in sorted(cells_of, key=lambda release: Version(release[1])):
        if all(_has_passed(rows, cell, {release}) for cell in cells_of[release]):
            found[release[0]].append(release[1])
    return found


def counting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outcomes that are in the README's table: of releases that have passed, or of cells about none."""
    known = {(package, version) for package, versions in passed(rows).items() for version in versions}
    cells = {cell["name"] for cell in releases.cells()}
    return [
        row
        for row in rows
        if row["outcome"] == results.PASSED
        and row["cell"] in cells
        and about(row) <= known
        and _has_passed(rows, row["cell"], about(row))
    ]


def _has_passed(rows: list[dict[str, Any]], cell: str, wanted: set[tuple[str, str]]) -> bool:
    """Whether a cell has passed with some releases, and has failed with them on no machine."""
    outcomes = {row["outcome"] for row in rows if row["cell"] == cell and wanted <= set(installed(row))}
    return results.PASSED in outcomes and results.FAILED not in outcomes


def about(row: dict[str, Any]) -> set[tuple[str, str]]:
    """The releases that an outcome is about: the frameworks that were installed, or torch if none was."""
    torch = {release for release in installed(row) if release[0] == "torch"}
    return set(installed(row)) - torch or torch


def installed(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a row's cell had of torch and the frameworks, by import name, without local parts (`+cpu`)."""
    torch = {"torch": row["torch"]} if "torch" in row else {}
    for name, version in {**torch, **row.get("frameworks", {})}.items():
        yield results.import_name(name), version.partition("+")[0]


def text() -> str:
    """What belongs into the file."""
    return json.dumps(passed(results.rows()), indent=1) + "\n"


def main() -> None:
    """Write both files."""
    FILE.write_text(text(), encoding="utf-8")
    command = [sys.executable, "-m", "ddp_patches", "list", "--markdown"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DDP_PATCHES": "0"}
    page = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=60)
    PAGE.write_bytes(page.stdout)


if __name__ == "__main__":
    main()
