"""What came of the cells of the matrix: results.jsonl, one line for each outcome."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

FILE = pathlib.Path(__file__).with_name("results.jsonl")

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"

# What a release consists of; everything else in its folder is what that imports.
_FRAMEWORKS = re.compile(r"(onedl-)?(mm[a-z0-9]+|ultralytics|yolov5)(-lite|-full)?$")
_IMPORT_NAMES = {"mmdetection": "mmdet", "mmsegmentation": "mmseg"}

# Two outcomes that agree in these are of the same cell on the same versions: only the newer one is kept.
_KEY = ("cell", "platform", "python", "torch", "frameworks")


def rows() -> list[dict[str, Any]]:
    """All outcomes that were kept, by the name of the cell."""
    if not FILE.is_file():
        return []
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def keep(row: dict[str, Any]) -> None:
    """Add an outcome; it takes the place of an older one of the same cell on the same versions."""
    others = [old for old in rows() if [old.get(name) for name in _KEY] != [row.get(name) for name in _KEY]]
    kept = sorted([*others, row], key=lambda row: str(row["cell"]))
    FILE.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")


def is_framework(distribution: str) -> bool:
    """Whether a distribution is one of a framework, by its name."""
    return bool(_FRAMEWORKS.match(distribution))


def import_name(distribution: str) -> str:
    """What a framework's distribution is imported as: forks and variants have names of their own."""
    name = re.sub(r"^onedl-|-lite$|-full$", "", distribution)
    return _IMPORT_NAMES.get(name, name)
