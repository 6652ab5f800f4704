"""What a process that launches workers tells the launcher and the workers, in one environment variable.

Three processes take part: the *parent*, in which the user called ``train()``; torch's *launcher*, which the
parent has started; and the *workers*. A process knows its part by its own command line, as the parent wrote
it: the variable is inherited by everybody's children, too.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from typing import Any, List, Optional, Tuple

from . import identity
from .family import Process

VARIABLE = "DDP_PATCHES_LAUNCH"
LAUNCHER = "launcher"  # under which name the launcher tells the parent who it is


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch.

    ``node``: where the pids mean something. ``folder``: private, of this launch, made and removed by the
    parent. ``files``: what the framework wrote for its workers and removes itself, unless it is killed.
    ``arguments``: the launcher's, behind the name of its module. ``script``: what the workers run.
    ``library``: the folder of the framework that the parent has imported.
    """

    parent: Process
    node: str
    folder: str
    files: Tuple[str, ...]
    arguments: Tuple[str, ...]
    script: str
    library: str
    launcher: Optional[Process] = None

    def encode(self) -> str:
        """The launch as the variable's value."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    def with_launcher(self, launcher: Process) -> Launch:
        """The same launch, once its launcher is known."""
        return dataclasses.replace(self, launcher=launcher)

    def tidy(self) -> None:
        """Remove what the parent would have removed. Raises nothing."""
        for path in self.files:
            try:
                os.unlink(path)
            except OSError:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)


def decode(text: str) -> Optional[Launch]:
    """The launch in ``text``, None if there is none."""
    try:
        found = json.loads(text)
        for name in ("parent", "launcher"):
            if found[name] is not None:
                found[name] = Process(int(found[name][0]), str(found[name][1]))
        for name in ("files", "arguments"):
            found[name] = tuple(map(str, found[name]))
        return Launch(**found)
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def as_launcher() -> Optional[Launch]:
    """The launch whose launcher this process is, if it is one."""
    found = _of_this_node()
    return found if found is not None and tuple(sys.argv[1:]) == found.arguments else None


def as_worker() -> Optional[Launch]:
    """The launch of which this process is a rank, if it is one; a loader worker of a rank is none."""
    found = _of_this_node()
    if found is None or found.launcher is None or "RANK" not in os.environ:
        return None
    import multiprocessing  # torch has imported it long since

    is_main = multiprocessing.parent_process() is None
    return found if is_main and sys.argv[:1] == [found.script] else None


def _of_this_node() -> Optional[Launch]:
    found = decode(os.environ.get(VARIABLE, ""))
    return found if found is not None and found.node == identity.node_key() else None


def write(folder: str, name: str, content: Any) -> None:
    """Write JSON into a launch's folder; a reader never sees half of it. Raises OSError."""
    temporary = os.path.join(folder, "%s-%d" % (name, os.getpid()))
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(temporary, os.path.join(folder, name + ".json"))


def read(folder: str, name: str) -> Any:
    """What :func:`write` wrote; None if there is nothing that can be read."""
    try:
        with open(os.path.join(folder, name + ".json"), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def names(folder: str, prefix: str) -> List[str]:
    """The names with ``prefix`` under which something was written."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return []
    return sorted(
        entry[: -len(".json")] for entry in entries if entry.startswith(prefix) and entry.endswith(".json")
    )
