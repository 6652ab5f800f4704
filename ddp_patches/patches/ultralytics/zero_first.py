"""``ultralytics.utils.torch_utils.torch_distributed_zero_first``: rank-0-first blocks without a time-out.

Why: rank 0 scans the labels of a large data set inside this block while the other ranks wait in a
barrier, and the scan outlives the barrier's limit. If rank 0 raises there, the others wait for the
whole limit and never learn why. No release has try/finally.

How: upstream's context manager still makes the real barrier; ours only sees to it that no rank
enters it before all others have come to it. Before a process group exists (Ultralytics calls it
while it is being imported), for a world of one and for ``-1`` it is upstream's alone.

Upstream: https://github.com/ultralytics/ultralytics/issues/1439
"""

from __future__ import annotations

from typing import Any, Callable

from ...engine.patch import patch
from .. import _job, _zero_first

ID = "ultralytics.zero_first"

PATCH = patch(
    ID,
    package="ultralytics",
    summary="ranks wait for a slow leader without a time-out, and raise with its reason if it fails",
    why="rank 0's label scan outlives the group's limit; its exception leaves the others waiting",
    upstream="https://github.com/ultralytics/ultralytics/issues/1439",
    since="0.1.0",
    remove_when="upstream waits for rank 0 by something else than a collective",
    tested=("8.0.132", "8.4.190"),
    condition=_job.obstacle,
)


@PATCH.replaces(
    "ultralytics.utils.torch_utils|ultralytics.yolo.utils.torch_utils:torch_distributed_zero_first",
    parameters=("local_rank",),
)
def torch_distributed_zero_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """The argument is the global rank in releases up to 8.2.70, the local rank in later ones."""
    return _zero_first.replacement_of(ID, original)
