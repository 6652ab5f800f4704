"""mmdet 2.x's ``collect_results_cpu``: a folder that the ranks do not share fails at once, on all of them.

Why: rank 0 finds the parts of the other ranks missing and raises; the others have gone on.
With several nodes, or ranks in different working directories, the parts then lie in different places.

How: ``_collecting`` tries the folder out before upstream's function begins. In a job in which a rank is
without this patch nothing is tried.

Upstream: https://github.com/open-mmlab/mmdetection/blob/2.x/mmdet/apis/test.py
"""

from __future__ import annotations

from typing import Any, Callable

from ...engine.patch import patch
from .. import _collecting, _job

ID = "mmdet.collect_results"
_ADVICE = (
    "Set tmpdir (tools/test.py: --tmpdir) to a folder on a file system that all ranks share, or collect by "
    "the GPUs: gpu_collect=True in evaluation, --gpu-collect for tools/test.py."
)

PATCH = patch(
    ID,
    package="mmdet",
    summary="a temporary folder that the ranks do not share fails at once on all ranks, with an explanation",
    why="one rank raises and the others wait for it in the next collective",
    upstream="https://github.com/open-mmlab/mmdetection/blob/2.x/mmdet/apis/test.py",
    since="0.1.0",
    remove_when="never: mmdet 2.x is no longer developed",
    tested=("2.28.2",),
    condition=_job.obstacle,
)


@PATCH.replaces(
    "mmdet.apis.test:collect_results_cpu", parameters=("result_part", "size", "tmpdir"), by_name=True
)
def collect_results_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """Raises FileNotFoundError on every rank where upstream would raise it on one."""
    return _collecting.replacement_of(ID, original, _ADVICE)
