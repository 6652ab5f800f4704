"""mmdet's ``reduce_mean``: the mean of a tensor over the ranks, which many heads take in their loss.

Why: the division is done in place, so that an integer tensor (the count of positive samples, say) fails
as soon as training is distributed; and when one rank never comes, because its batch has no positive
samples or its loader hangs, all the others fail here with an error that names neither the head nor the
missing rank.

How: floats go to upstream's function as they are, so that the bits are upstream's. Integers and bools are
converted to the default float type first. A world of one needs no communication. What upstream raises is
raised again with the call site, and with the ranks that gave no sign of being in the same call. A head that
calls it on some ranks only cannot be repaired from here: the missing rank never comes by.

Upstream: https://github.com/open-mmlab/mmdetection/pull/4210,
https://github.com/open-mmlab/mmdetection/issues/4724
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

from ... import console
from ...engine import ledger
from ...engine.patch import patch
from ...runtime import attendance, job, stacks

ID = "mmdet.reduce_mean"

PATCH = patch(
    ID,
    package="mmdet",
    summary="integers and bools get a float mean, where upstream raises; errors name call and missing ranks",
    why="an integer tensor fails in distributed training; a rank that never comes is not named",
    upstream="https://github.com/open-mmlab/mmdetection/issues/4724",
    since="0.1.0",
    remove_when="upstream's function takes integers and its errors name the missing rank",
    tested=("2.14.0", "2.28.2", "3.3.0"),
)


@PATCH.replaces("mmdet.utils.dist_utils|mmdet.core.utils.dist_utils:reduce_mean", parameters=("tensor",))
def reduce_mean(original: Callable[..., Any]) -> Callable[..., Any]:
    """A new tensor of the shape of ``tensor``; without a process group ``tensor`` itself."""
    import torch
    import torch.distributed as dist

    def prepared(tensor: Any) -> Any:
        if tensor.is_floating_point() or tensor.is_complex():
            return tensor
        return tensor.to(torch.get_default_dtype())

    def replacement(tensor: Any, *more: Any, **named: Any) -> Any:
        # No release known has more arguments: a group of some ranks, say.
        if more or named or not (dist.is_available() and dist.is_initialized()):
            return original(tensor, *more, **named)
        floating = ledger.attempt(ID, lambda: prepared(tensor), tensor)
        if dist.get_world_size() == 1:
            # A copy, as upstream's result is one; a converted tensor already is.
            return floating.clone() if floating is tensor else floating
        try:
            return original(floating)
        except Exception as error:
            ledger.attempt(ID, functools.partial(_explain, error, stacks.places(sys._getframe())), None)
            raise

    return replacement


def _explain(error: Exception, stack: Any) -> None:
    """Add call site and ranks to the message of ``error``, whose type callers may rely on."""
    place = stacks.describe(stacks.telling(stack))
    text = "reduce_mean, called at %s: %s" % (place, attendance.sentence(job.current(), "reduce_mean", place))
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = ("%s\n[ddp_patches] %s" % (error.args[0], text),)
    else:
        console.warn(text)
