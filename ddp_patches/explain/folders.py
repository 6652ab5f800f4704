"""Which files of a folder are logs of its newest run."""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Tuple

MOST_FILES = 20000  # a thousand ranks leave two thousand

_LOG_NAMES = re.compile(
    r"(?:.*\.(?:log|out|err|txt)(?:\.\d{1,3})?|.*\.[oe]\d{2,12}|stdout|stderr|error\.json|.*\.log\.json)"
    r"(?:\.gz)?",
    re.IGNORECASE,
)
_NO_LOGS = re.compile(
    r"(?:requirements.*|results|readme.*|license.*|.*labels.*|events\..*)\.txt", re.IGNORECASE
)
_SKIPPED_FOLDERS = frozenset((".git", "__pycache__", "node_modules", "wandb", "site-packages"))

_ATTEMPT = re.compile(r"(?P<run>.+?)/attempt_(?P<attempt>\d{1,6})/")
_RANDOM_TAIL = re.compile(r"_[a-z0-9_]{8}$")  # tempfile's, which torchrun adds to the run's id on each node
_SLURM = re.compile(r"(?P<run>.*slurm-\d+)")
_BATCH = re.compile(r"(?P<name>.+)\.[oe](?P<job>\d+)(?:\.gz)?$")
_STAMP = re.compile(r"(?P<run>.*\d{8}_\d{6})")  # OpenMMLab's


class Choice(NamedTuple):
    """``others``: names of older runs whose logs were left out."""

    files: List[str]
    others: List[str]


def newest_run(folder: str) -> Choice:
    """The logs of the newest run below ``folder``; none if there is nothing that looks like a log.

    Two runs must not be mixed: a rank of the one would be missed in the other. What belongs together is told
    by names (torchrun's attempts, Slurm's job ids, OpenMMLab's time stamps), else by the folder.
    """
    groups: Dict[str, List[str]] = {}
    times: Dict[str, float] = {}
    for path in _logs(folder):
        name = run_of(os.path.relpath(path, folder).replace(os.sep, "/"))
        groups.setdefault(name, []).append(path)
        times[name] = max(times.get(name, 0.0), _modified(path))
    if not groups:
        return Choice([], [])
    order = sorted(groups, key=lambda name: (times[name], natural(name)))
    newest = order.pop()
    return Choice(sorted(_last_attempt(groups[newest]), key=natural), order[::-1])


def run_of(path: str) -> str:
    """A name of the run that a log belongs to; ``path`` is relative, with slashes."""
    attempt = _ATTEMPT.match(path)
    if attempt:
        return (
            _RANDOM_TAIL.sub("", attempt["run"]) if not attempt["run"].startswith("none_") else attempt["run"]
        )
    folder, _, name = path.rpartition("/")
    batch = _BATCH.match(name)
    if batch:
        return "%s/%s %s" % (folder, batch["name"], batch["job"])
    for pattern in (_SLURM, _STAMP):
        found = pattern.match(path)
        if found:
            return found["run"]
    return folder or "."


def natural(text: str) -> List[Tuple[int, str]]:
    """A key that sorts ``rank10`` behind ``rank2``."""
    return [(int(part[:15]), "") if part.isdecimal() and part.isascii() else (-1, part)
            for part in re.split(r"(\d+)", text) if part]  # fmt: skip


def _last_attempt(files: List[str]) -> List[str]:
    """torchrun's restarts leave a folder each; the last one is what happened in the end."""
    numbers = {}
    for file in files:
        found = re.search(r"/attempt_(\d{1,6})/", file.replace(os.sep, "/"))
        numbers[file] = int(found[1]) if found else -1
    last = max(numbers.values())
    return [file for file in files if numbers[file] == last]


def _logs(folder: str) -> List[str]:
    found: List[str] = []
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            path = os.path.join(base, name)
            if _LOG_NAMES.fullmatch(name) and not _NO_LOGS.fullmatch(name) and os.path.isfile(path):
                found.append(path)
                if len(found) >= MOST_FILES:
                    return found
    return found


def _modified(path: str) -> float:
    try:
        return os.path.getmtime(path)
    except OSError:
        return 0.0
