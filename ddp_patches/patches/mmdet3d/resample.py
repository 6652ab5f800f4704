"""mmdet3d's ``_rand_another``, before 1.1: which sample a data set tries next when one came out empty.

Why: ``__getitem__`` draws another sample with the same flag until one is not empty. Where the flag is the
number of a scene, as in StreamPETR and its like, a scene without objects never ends: this rank stands still
in its loader, and the others time out in their next all-reduce.

How: the draw alone is replaced, which data sets with a loop of their own call too. A scene is left only
when all its frames have been tried, for the first frame of another one, where the model begins with an
empty memory. See ``mmdet.resample`` for the rest. Releases from 1.1 on have mmengine's loop.

Upstream: https://github.com/open-mmlab/mmdetection3d/blob/1.0/mmdet3d/datasets/custom_3d.py
"""

from __future__ import annotations

from typing import Any, Callable

from ...engine.patch import patch
from .. import _resampling

ID = "mmdet3d.resample"

PATCH = patch(
    ID,
    package="mmdet3d",
    summary="empty samples are replaced without repeats and with a bound; a scene without objects is left",
    why="a scene without objects is drawn from for ever, while the other ranks time out",
    upstream="https://github.com/open-mmlab/mmdetection3d/blob/1.0/mmdet3d/datasets/custom_3d.py",
    since="0.1.0",
    remove_when="never: mmdet3d before 1.1 is no longer developed",
    tested=("1.0.0rc6",),
)
_VERSIONS = "<1.1.0rc0"


@PATCH.replaces(
    "mmdet3d.datasets.custom_3d:Custom3DDataset._rand_another", parameters=("idx",), versions=_VERSIONS
)
@PATCH.replaces(
    "mmdet3d.datasets.custom_3d_seg:Custom3DSegDataset._rand_another", parameters=("idx",), versions=_VERSIONS
)
def rand_another(original: Callable[..., Any]) -> Callable[..., Any]:
    """An index of the data set, as numpy's integer; raises NoSample at the bound."""
    return _resampling.by_index(ID, original)


@PATCH.replaces(
    "mmdet3d.datasets.pipelines.compose:Compose.__call__", parameters=("data",), versions=_VERSIONS
)
def compose(original: Callable[..., Any]) -> Callable[..., Any]:
    """Notes which transform returned None, while another sample is being looked for."""
    return _resampling.compose(ID, original)
