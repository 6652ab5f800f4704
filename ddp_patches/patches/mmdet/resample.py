"""mmdet 2.x's ``_rand_another``: which sample a data set tries next when one came out empty.

Why: ``__getitem__`` draws another sample of the same group (aspect ratio) until one is not empty. If the
whole group is empty it never ends: this rank stands still in its loader, and the others time out in their
next all-reduce.

How: the draw alone is replaced, which data sets with a loop of their own call too. Within one
``__getitem__`` no sample is drawn twice before all were tried; after ``max_resamples`` draws it raises and
says which transforms dropped the samples. Sequences (flags that number them) stay among themselves as long
as they have a sample left; other flags are aspect ratios, which a replacement need not keep.

Upstream: https://github.com/open-mmlab/mmdetection/blob/2.x/mmdet/datasets/custom.py
"""

from __future__ import annotations

from typing import Any, Callable

from ...engine.patch import patch
from .. import _resampling

ID = "mmdet.resample"

PATCH = patch(
    ID,
    package="mmdet",
    summary="empty samples are replaced without repeats and with a bound, and the transforms to blame named",
    why="a group without a single good sample is drawn from for ever, while the other ranks time out",
    upstream="https://github.com/open-mmlab/mmdetection/blob/2.x/mmdet/datasets/custom.py",
    since="0.1.0",
    remove_when="never: mmdet 2.x is no longer developed",
    tested=("2.14.0", "2.28.2"),
)


@PATCH.replaces(
    "mmdet.datasets.custom:CustomDataset._rand_another", parameters=("idx",), versions="<3.0.0rc0"
)
def rand_another(original: Callable[..., Any]) -> Callable[..., Any]:
    """An index of the data set, as numpy's integer; raises NoSample at the bound."""
    return _resampling.by_index(ID, original)


@PATCH.replaces(
    "mmdet.datasets.pipelines.compose:Compose.__call__", parameters=("data",), versions="<3.0.0rc0"
)
def compose(original: Callable[..., Any]) -> Callable[..., Any]:
    """Notes which transform returned None, while another sample is being looked for."""
    return _resampling.compose(ID, original)
