"""mmengine's ``init_dist``: the ranks of a Slurm step meet, each on its own device, with the limit given.

Timeout. Releases from 0.7 on take a number of seconds and reject a timedelta, earlier ones the other way
round, and up to 0.7 at least the Slurm launcher takes none at all. Here each takes seconds, a duration
("2h") or a timedelta, with every launcher.

Slurm. Every job meets on port 29500 of its first node: the second one there fails, or joins the first.
Here that one meets on another port, and rank 0 tells the others on which, unless ``port`` or MASTER_PORT
says one. See ``runtime.step_port``.

Device. The rank's number on its node, where releases up to 0.7.0 use the global one. A task that is shown
its own GPUs alone (``--gpus-per-task=1``) has no device of that number; here it takes its own.

Upstream: https://github.com/open-mmlab/mmengine/blob/main/mmengine/dist/utils.py,
https://github.com/open-mmlab/mmengine/issues/873
"""

from __future__ import annotations

from typing import Any, Callable

from ...engine.patch import patch
from .. import _launching

ID = "mmengine.init_dist"
TARGET = "mmengine.dist.utils:init_dist"

PATCH = patch(
    ID,
    package="mmengine",
    summary="timeout in any form, a free port for Slurm jobs, the device by the rank's number on its node",
    why="two jobs of a node share port 29500; a task asks for a device that it is not shown",
    upstream="https://github.com/open-mmlab/mmengine/issues/873",
    since="0.1.0",
    remove_when="upstream takes a port from Slurm's job and the device from what the task sees",
    tested=("0.1.0", "0.7.4", "0.10.7"),
)


@PATCH.replaces(TARGET, parameters=("launcher", "backend"), by_name=True)
def init_dist(original: Callable[..., Any]) -> Callable[..., Any]:
    """Same arguments as upstream's; ``timeout``: seconds, a duration or a timedelta."""
    return _launching.replacement_of(ID, TARGET, original)
