"""mmcv 1.x's ``init_dist``: the ranks of a Slurm step meet, each on its own device, with the limit given.

Timeout. Upstream hands on a timedelta and nothing else, and its Slurm launcher takes none. Here each
takes seconds, a duration ("2h") or a timedelta, with every launcher.

Slurm. Each task looks whether port 29500 is free on its own node, and picks another one at random where
it is not, as when rank 0 has just taken it: then the tasks never meet. Here rank 0 alone looks, and tells
the others which port it is, unless ``port`` or MASTER_PORT says one. See ``runtime.step_port``.

Device. The rank's number on its node, where upstream divides the global one by the number of devices
and takes the remainder: wrong where nodes have different numbers of ranks.

Upstream: https://github.com/open-mmlab/mmcv/blob/1.x/mmcv/runner/dist_utils.py
"""

from __future__ import annotations

from typing import Any, Callable

from ...engine.patch import patch
from .. import _launching

ID = "mmcv.init_dist"
TARGET = "mmcv.runner.dist_utils:init_dist"

PATCH = patch(
    ID,
    package="mmcv",
    summary="timeout in any form, one port for all Slurm tasks, the device by the rank's number on its node",
    why="where port 29500 is taken each rank picks another one and the job never meets",
    upstream="https://github.com/open-mmlab/mmcv/blob/1.x/mmcv/runner/dist_utils.py",
    since="0.1.0",
    remove_when="never: mmcv 1.x is no longer developed",
    tested=("1.3.8", "1.7.2"),
)


@PATCH.replaces(TARGET, parameters=("launcher", "backend"), by_name=True)
def init_dist(original: Callable[..., Any]) -> Callable[..., Any]:
    """Same arguments as upstream's; ``timeout``: seconds, a duration or a timedelta."""
    return _launching.replacement_of(ID, TARGET, original)
