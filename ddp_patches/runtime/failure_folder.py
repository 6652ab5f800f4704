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


def prepare(environ: MutableMapping[str, str]) -> None:
    """Have the processes that are started from now on leave their failures in one folder.

    It is removed when this process ends. A launch below another one uses that one's. Raises OSError.
    """
    if os.path.isdir(environ.get(VARIABLE, "")):
        return
    folder = tempfile.mkdtemp(prefix="ddp_patches-failures-")
    environ[VARIABLE] = folder
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
    """The first failure of this attempt that is known here, ``""`` if none is."""
    folder, attempt = _folder(), _attempt()
    return _earliest(folder, attempt) if folder else ""


def earliest_of_last_attempt() -> str:
    """For the launcher: it may have started the ranks several times."""
    folder = _folder()
    attempts = {name.partition(".")[0] for name in _names(folder)}
    return _earliest(folder, max(attempts, key=int)) if attempts else ""


def all_of_last_attempt(folder: str) -> List[str]:
    """The failures of all ranks of a launch, each as it was written down."""
    attempts = {name.partition(".")[0] for name in _names(folder)}
    return (
        [text for is_first, _, text in _written(folder, max(attempts, key=int)) if not is_first]
        if attempts
        else []
    )


def _folder() -> str:
    folder = os.environ.get(VARIABLE, "")
    return folder if os.path.isdir(folder) else ""


def _attempt() -> str:
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return count if count.isdigit() else "0"


def _names(folder: str) -> List[str]:
    try:
        return [name for name in os.listdir(folder) if name.partition(".")[0].isdigit()] if folder else []
    except OSError:
        return []


def _write(name: str, text: str) -> None:
    folder = _folder()
    if not folder:
        return
    path = os.path.join(folder, "%s.%s" % (_attempt(), name))
    try:
        with open(path + "~", "w") as file:
            file.write(text)
        os.replace(path + "~", path)
    except OSError:
        pass


def _earliest(folder: str, attempt: str) -> str:
    # What the store says is the first counts before what the clocks say.
    found = _written(folder, attempt)
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
