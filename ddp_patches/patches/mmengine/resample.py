"""mmengine's ``_rand_another``: which sample a data set tries next when one came out empty.

Why: after ``max_refetch`` draws upstream raises, and does not say why. Draws repeat, so that a sample that is
good may not be among them.

How: the draw alone is replaced. Within one ``__getitem__`` no sample is drawn twice before all were tried.
``max_refetch`` keeps its meaning: at the draw whose sample upstream's loop would no longer try, we raise, and
say which transforms dropped the samples. A loop of a data set's own gets the bound ``max_resamples``.

Upstream: https://github.com/open-mmlab/mmengine/blob/main/mmengine/dataset/base_dataset.py
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any, Callable, Optional, Tuple

from ...engine.patch import patch
from .. import _resampling

ID = "mmengine.resample"

PATCH = patch(
    ID,
    package="mmengine",
    summary="empty samples are replaced without repeats; the error after max_refetch names the transforms",
    why="upstream's error does not say why no sample was found, and its draws may miss the good ones",
    upstream="https://github.com/open-mmlab/mmengine/blob/main/mmengine/dataset/base_dataset.py",
    since="0.1.0",
    remove_when="upstream draws without repeats and its error names the transforms",
    tested=("0.1.0", "0.7.4", "0.10.7", "0.10.12"),
)


@PATCH.replaces("mmengine.dataset.base_dataset:BaseDataset._rand_another")
def rand_another(original: Callable[..., Any]) -> Callable[..., Any]:
    """An index of the data set; raises NoSample at the bound."""

    def replacement(self: Any, *more: Any, **named: Any) -> Any:
        if more or named:  # which no release known has
            return original(self, *more, **named)
        drawn = _resampling.another(ID, self, sys._getframe(1), own_bound=_max_refetch)
        return original(self) if drawn is None else drawn

    return replacement


def _max_refetch(data_set: Any, call: FrameType) -> Optional[Tuple[int, str]]:
    """Upstream's bound, where ``call`` is upstream's own loop."""
    module = sys.modules["mmengine.dataset.base_dataset"]
    loop = inspect.unwrap(vars(module.BaseDataset)["__getitem__"])
    if call.f_code is not getattr(loop, "__code__", None):
        return None
    return int(data_set.max_refetch), "max_refetch of the data set"


@PATCH.replaces("mmengine.dataset.base_dataset:Compose.__call__", parameters=("data",))
def compose(original: Callable[..., Any]) -> Callable[..., Any]:
    """Notes which transform returned None, while another sample is being looked for."""
    return _resampling.compose(ID, original)
