"""A private folder in which the ranks of one launch leave their failures for whoever has launched them.

Made by the launching process, which tells its children by an internal variable. It is how the launcher's
last lines, and ranks that have lost the store, know which rank failed first.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from typing import List, MutableMapping, Tuple

VARIABLE = "DDP_PATCHES_FAILURES"
_FIRST = "first"
_LONGEST = 64 * 1024  # characters


class _Folders:
    """``launch``: for what this process launches, made by it; ``rank``: for its own failure, inherited."""

    launch = ""
    rank = os.environ.get(VARIABLE, "")


def _after_fork() -> None:
    _Folders.launch, _Folders.rank = "", os.environ.get(VARIABLE, "")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def prepare(environ: MutableMapping[str, str]) -> None:
    """Have the processes that are started from now on leave their failures in one folder.

    It is removed when this process ends. A launcher that another process has started for a launch of its
    own uses that one's folder; a rank that launches something else does not. Raises OSError.
    """
    if _Folders.launch and environ.get(VARIABLE) == _Folders.launch:
        for name in _names(_Folders.launch):  # of an earlier launch
            os.unlink(os.path.join(_Folders.launch, name))
        return
    is_rank = environ.get("RANK", "-1") not in ("", "-1")
    if os.path.isdir(environ.get(VARIABLE, "")) and not is_rank:
        return
    folder = tempfile.mkdtemp(prefix="ddp_patches-failures-")
    _Folders.launch = environ[VARIABLE] = folder
    pid = os.getpid()

    def remove() -> None:
        if os.getpid() == pid:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


def note(rank: int, text: str) -> None:
    """For a rank: its failure. Nothing happens where there is no folder."""
    _write("rank-%d" % rank, text)


def note_first(text: str) -> None:
    """For a rank: the first failure of the job, as the store says; it may have happened on another node."""
    _write(_FIRST, text)


def earliest() -> str:
    """For a rank: the first failure of this attempt that is known here, ``""`` if none is."""
    return _earliest(_written(_Folders.rank, _attempt()))


def earliest_of_launch() -> str:
    """For the launcher: the same, of the last attempt if it has started the ranks several times."""
    folder = os.environ.get(VARIABLE, "")
    return _earliest(_written(folder, _last_attempt(folder)))


def all_of_launch(folder: str) -> List[str]:
    """The failures of all ranks of the last attempt of a launch, each as it was written down."""
    return [text for is_first, _, text in _written(folder, _last_attempt(folder)) if not is_first]


def _last_attempt(folder: str) -> str:
    return max((name.partition(".")[0] for name in _names(folder)), key=int, default="0")


def _attempt() -> str:
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return count if count.isdigit() else "0"


def _names(folder: str) -> List[str]:
    try:
        return [name for name in os.listdir(folder) if name.partition(".")[0].isdigit()] if folder else []
    except OSError:
        return []


def _write(name: str, text: str) -> None:
    path = os.path.join(_Folders.rank, "%s.%s" % (_attempt(), name))
    try:
        if not os.path.isdir(_Folders.rank):
            return
        with open(path + "~", "w") as file:
            file.write(text)
        os.replace(path + "~", path)
    except OSError:
        pass


def _earliest(found: List[Tuple[bool, float, str]]) -> str:
    # What the store says is the first counts before what the clocks say.
    return min(found, key=lambda each: (not each[0], each[1]))[2] if found else ""


def _written(folder: str, attempt: str) -> List[Tuple[bool, float, str]]:
    """Whether it is the first by the store's word, its time, its text."""
    found = []
    for name in _names(folder):
        if not name.startswith(attempt + ".") or name.endswith("~"):
            continue
        try:
            with open(os.path.join(folder, name), errors="replace") as file:
                text = file.read(_LONGEST)
            found.append((name.endswith(_FIRST), float(json.loads(text)["time"]), text))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return found
