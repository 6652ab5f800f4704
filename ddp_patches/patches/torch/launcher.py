"""torch's launcher, in the process that Ultralytics' parent has started: it ends with its parent.

Left alone it lives on when its parent is killed, and so do the ranks, on the GPUs. So a thread looks whether
the parent is still there; if not, the launcher gets SIGTERM, at which torch ends the ranks. Before the first
rank starts, the launcher tells the parent who it is, and afterwards how the ranks have ended.

A launcher that somebody else has started is left alone.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Optional

from ... import console
from ...engine import ledger
from ...engine.patch import patch
from ...runtime import family, first_failure, launched
from ...runtime.watch import Watch

ID = "torch.launcher"


def obstacle() -> Optional[str]:
    """Why this process is none of ours to watch, None if it is."""
    if launched.as_launcher() is None:
        return "this process is no launcher that Ultralytics has started"
    return None


launcher = patch(
    ID,
    package="torch",
    summary="a launcher that Ultralytics has started ends, with its ranks, when the parent process is gone",
    why="a killed parent leaves the launcher and all ranks running",
    upstream="https://docs.ultralytics.com/modes/train/#multi-gpu-training",
    since="0.1.0",
    remove_when="torch's launcher ends with the process that has started it",
    tested=("1.12.1", "1.13.1", "2.0.1", "2.9.1", "2.13.0", "2.14.1"),
    condition=obstacle,
)


@launcher.replaces(
    "torch.distributed.launcher.api:launch_agent",
    parameters=("config", "entrypoint", "args"),
    by_name=True,
)
def launch_agent(original: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(*arguments: Any, **keywords: Any) -> Any:
        found = launched.as_launcher()
        watch = ledger.attempt(ID, lambda: _begin(found), None) if found is not None else None
        try:
            return original(*arguments, **keywords)
        except BaseException as error:
            if found is not None:
                _note(found, error)
            raise
        finally:
            if watch is not None:
                watch.stop()

    return replacement


def _begin(found: launched.Launch) -> Watch:
    this = family.this_process()
    if found.parent.is_alive():
        launched.write(found.folder, launched.LAUNCHER, list(this))
    os.environ[launched.VARIABLE] = found.with_launcher(this).encode()
    return Watch(
        {"the process that has launched this training": found.parent},
        tidy=found.tidy,
        mine=lambda: family.of_launcher(this.pid),
    )


def _note(found: launched.Launch, error: BaseException) -> None:
    try:
        first_failure.write_launcher(found.folder, error)
    except OSError as problem:  # the parent has ended, and taken the folder along
        console.logger().debug("the end of the ranks cannot be told to the parent: %r", problem)
