"""mmengine's ``collect_results_cpu``: a folder that the ranks do not share fails at once, on all of them.

Why: rank 0 finds the parts of the other ranks missing and raises, or another rank cannot write its own.
With several nodes, or ranks in different working directories, the parts then lie in different places.

How: ``_collecting`` tries the folder out before upstream's function begins. In a job in which a rank is
without this patch nothing is tried.

Upstream: https://github.com/open-mmlab/mmengine/blob/main/mmengine/dist/dist.py
"""

from __future__ import annotations

from typing import Any, Callable

from ...engine.patch import patch
from .. import _collecting, _job

ID = "mmengine.collect_results"
_ADVICE = (
    "Set collect_dir of the metrics to a folder on a file system that all ranks share, or their "
    "collect_device='gpu'."
)

PATCH = patch(
    ID,
    package="mmengine",
    summary="a temporary folder that the ranks do not share fails at once on all ranks, with an explanation",
    why="one rank raises and the others wait for it in the next collective",
    upstream="https://github.com/open-mmlab/mmengine/blob/main/mmengine/dist/dist.py",
    since="0.1.0",
    remove_when="upstream's ranks tell each other of the failure",
    tested=(
        "0.7.4",
        "0.10.7",
    ),
    condition=_job.obstacle,
)


@PATCH.replaces(
    "mmengine.dist.dist:collect_results_cpu", parameters=("result_part", "size", "tmpdir"), by_name=True
)
def collect_results_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """Raises FileNotFoundError on every rank where upstream would raise it on one."""
    return _collecting.replacement_of(ID, original, _ADVICE)
