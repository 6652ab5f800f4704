"""One small private folder per job, with one ledger file for all its ranks.

The ledger is written by rank 0, a stall report by the rank that prints it. A folder that cannot be
made, a full disk or ``run_dir=none`` cost nothing but the file: everything that matters is in the log
as well.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from typing import Any, Dict, List, Mapping, Optional

from .. import settings

_KEPT = 10  # newest runs
_LEDGER = "ledger.json"
_STALL = re.compile(r"^stall-\d{6}\.json$")
_NAME = re.compile(r"^\d{8}-\d{6}-[0-9a-f]{6}$")


def base(environ: Mapping[str, str]) -> Optional[str]:
    """The folder that holds the runs, None for ``run_dir=none``.

    ``run_dir``, else ``$XDG_STATE_HOME/ddp_patches``, else ``~/.local/state/ddp_patches``, else a
    folder of this user's in the temporary folder (a uid without a passwd entry has no home).
    """
    chosen = settings.current().run_dir
    if chosen.lower() == "none":
        return None
    if chosen:
        return os.path.expanduser(chosen)
    state = environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        return os.path.join(state, "ddp_patches")
    home = os.path.expanduser("~")
    if os.path.isabs(home) and os.access(home, os.W_OK):
        return os.path.join(home, ".local", "state", "ddp_patches")
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return os.path.join(tempfile.gettempdir(), "ddp_patches-%s" % user)


def make(name: str) -> str:
    """Make the folder of a run, readable for this user only, and drop the oldest beyond ten.

    Raises OSError, also where the parent folder is somebody else's (a shared temporary folder).
    """
    folder = base(os.environ)
    if folder is None:
        raise OSError("run_dir is none")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if hasattr(os, "getuid") and os.stat(folder).st_uid not in (os.getuid(), 0):
        raise OSError("%s belongs to another user" % folder)
    path = os.path.join(folder, name)
    os.mkdir(path, 0o700)
    for old in _names(folder)[_KEPT:]:
        shutil.rmtree(os.path.join(folder, old), ignore_errors=True)
    return path


def write(path: str, content: Mapping[str, Any], name: str = _LEDGER) -> None:
    """Write a file of a run, the ledger; a reader never sees half of it. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1, sort_keys=True)
        os.replace(temporary, os.path.join(path, name))
    except BaseException:
        os.unlink(temporary)
        raise


def add(run: str, name: str, content: Mapping[str, Any]) -> str:
    """Write a further file into the folder of a run; its path, ``""`` if that cannot be.

    On another node than rank 0's the folder is made for it.
    """
    folder = base(os.environ)
    if folder is None or not _NAME.match(run):
        return ""
    path = os.path.join(folder, run)
    try:
        if not os.path.isdir(path):
            make(run)
        write(path, content, name)
    except OSError:
        return ""
    return os.path.join(path, name)


def runs() -> List[str]:
    """The ids of the runs that have a folder, newest first."""
    folder = base(os.environ)
    return _names(folder) if folder is not None else []


def read(run: str) -> Dict[str, Any]:
    """The ledger of a run. Raises FileNotFoundError for an unknown id, ValueError for a damaged file."""
    folder = base(os.environ)
    if folder is None or not _NAME.match(run):
        raise FileNotFoundError("there is no run %r" % run)
    with open(os.path.join(folder, run, _LEDGER)) as file:
        found = json.load(file)
    if not isinstance(found, dict):
        raise ValueError("the ledger of run %s is damaged" % run)
    return found


def stalls(run: str) -> List[Dict[str, Any]]:
    """The stall reports of a run in the order of their time, each with the ``path`` of its file."""
    folder = base(os.environ)
    found = []
    names = os.listdir(os.path.join(folder, run)) if folder is not None and _NAME.match(run) else []
    for name in names:
        if _STALL.match(name):
            path = os.path.join(folder or "", run, name)
            try:
                with open(path) as file:
                    found.append({**json.load(file), "path": path})
            except (OSError, ValueError, TypeError):
                continue
    return sorted(found, key=lambda report: str(report.get("time")))


def _names(folder: str) -> List[str]:
    try:
        entries = os.listdir(folder)
    except OSError:
        return []
    return sorted((name for name in entries if _NAME.match(name)), reverse=True)
