"""The end of a launch that has failed: which rank failed first, after all that the launcher prints.

Why: a rank that fails takes the others with it, and the launcher reports whichever process it found dead
first, by number and exit code. The error that matters is somewhere in thousands of lines.

How: the launching process makes a private folder in which its ranks leave their failures (see
``runtime.failures``). When it ends with an error itself, that rank, host, time, error and file are its last
lines. The ranks of ``torch.multiprocessing.spawn`` catch their own errors to hand them to their parent: they
are told of on the way.

Upstream: https://github.com/pytorch/pytorch/blob/main/torch/distributed/launcher/api.py,
https://github.com/pytorch/pytorch/blob/main/torch/multiprocessing/spawn.py
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable

from ...engine import ledger
from ...engine.patch import patch
from ...runtime import failure_folder, failures

ID = "torch.first_error"

PATCH = patch(
    ID,
    package="torch",
    summary="the launcher's last lines name the rank that failed first, with its error and file",
    why="one rank fails, the others' connections break, and the launcher blames whichever it found first",
    upstream="https://github.com/pytorch/pytorch/issues/84519",
    since="0.1.0",
    remove_when="torchrun prints the first failing rank's own error last",
    tested=("1.12.1", "1.13.1", "2.0.1", "2.9.1", "2.13.0", "2.14.1"),
)


@PATCH.replaces(
    "torch.distributed.launcher.api:launch_agent",
    parameters=("config", "entrypoint", "args"),
    by_name=True,
)
def launch_agent(original: Callable[..., Any]) -> Callable[..., Any]:
    """Same arguments, result and errors as upstream's."""

    def replacement(*args: Any, **keywords: Any) -> Any:
        ledger.attempt(ID, _prepare, None)
        return original(*args, **keywords)

    return replacement


@PATCH.replaces("torch.multiprocessing.spawn:start_processes", parameters=("fn",))
def start_processes(original: Callable[..., Any]) -> Callable[..., Any]:
    """Same arguments, result and errors as upstream's; ``fn`` tells of its error before it is caught."""

    def replacement(fn: Any, *args: Any, **keywords: Any) -> Any:
        ledger.attempt(ID, _prepare, None)
        return original(functools.partial(_telling, fn), *args, **keywords)

    return replacement


def _prepare() -> None:
    failure_folder.prepare(os.environ)
    failures.say_at_the_end()


def _telling(fn: Any, *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:
        failures.report(error)
        raise
