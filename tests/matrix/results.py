"""What came of the cells of the matrix: results.jsonl, one line for each run of one."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
FILE = pathlib.Path(__file__).with_name("results.jsonl")

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"

# What a release consists of; everything else in its folder is what that imports.
_FRAMEWORKS = re.compile(r"(onedl-)?(mm[a-z0-9]+|ultralytics|yolov5)(-lite|-full)?$")
_IMPORT_NAMES = {"mmdetection": "mmdet", "mmsegmentation": "mmseg"}

# Two outcomes that agree in these are of the same cell on the same versions: only the later one counts.
_KEY = ("cell", "platform", "python", "torch", "frameworks")

# What the outcomes themselves change does not make another code of the one that was run.
_WRITTEN = [FILE, ROOT / "README.md", ROOT / "patches.md", ROOT / "ddp_patches" / "engine" / "passed.json"]


def rows() -> list[dict[str, Any]]:
    """The outcomes that count: the last one of each cell on the same versions."""
    if not FILE.is_file():
        return []
    found = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    return list({json.dumps([row.get(name) for name in _KEY], sort_keys=True): row for row in found}.values())


def keep(row: dict[str, Any]) -> None:
    """Append an outcome."""
    with FILE.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def commit() -> str:
    """The commit of the code that is run, with `-dirty` if it is not quite that; empty without git."""
    if not (ROOT / ".git").exists():  # else git would answer for a folder above
        return ""
    paths = [".", *(":(exclude)" + path.relative_to(ROOT).as_posix() for path in _WRITTEN)]
    name = _git("describe", "--always")
    return name and name + ("-dirty" if _git("status", "--porcelain", "--", *paths) else "")


def _git(*arguments: str) -> str:
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "encoding": "utf-8"}
    try:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], **options).stdout.strip()
    except OSError:
        return ""


def is_framework(distribution: str) -> bool:
    """Whether a distribution is one of a framework, by its name."""
    return bool(_FRAMEWORKS.match(distribution))


def import_name(distribution: str) -> str:
    """What a framework's distribution is imported as: forks and variants have names of their own."""
    name = re.sub(r"^onedl-|-lite$|-full$", "", distribution)
    return _IMPORT_NAMES.get(name, name)
