"""What a rank's main thread is doing, told from its stack alone: nothing of torch is wrapped for it.

Only a thread whose innermost frames are torch's own waits in torch. A forward pass that has come as far as
the user's model does not, although DDP's ``forward`` is on the stack as well.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Optional, Sequence

from .stacks import Place, describe, is_below, telling

COLLECTIVE, BUILDING, FORWARD, BACKWARD = "collective", "DDP construction", "DDP forward", "DDP backward"
LOADER, LEADER_WAIT, LEAVING, ELSEWHERE = "loader", "rank-0-first block", "leaving", "elsewhere"
# In these a rank waits for the others. A rank-0-first block has lines of its own.
WAITS = (COLLECTIVE, BUILDING, FORWARD, BACKWARD)

# Where a rank waits for others in torch.distributed.distributed_c10d, by the start of the function's name.
_COLLECTIVES = (
    "all_",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "reduce",
    "scatter",
    "send",
)


@dataclasses.dataclass(frozen=True)
class Standing:
    """``kind``: one of the above; ``what``: the collective; ``place``: the user's file, line, function."""

    kind: str
    what: str
    place: Optional[Place]

    def sentence(self) -> str:
        """``in all_reduce, called at heads/focal.py:338 in loss``."""
        where = describe(self.place)
        if self.kind == COLLECTIVE:
            return "in %s, called at %s" % (self.what, where)
        if self.kind == LOADER:
            return "waiting for its DataLoader at %s" % where
        if self.kind in (BUILDING, FORWARD, BACKWARD):
            return "in %s, called at %s" % (self.kind, where)
        if self.kind == LEADER_WAIT:
            return "waiting for the leader of a rank-0-first block at %s" % where
        if self.kind == LEAVING:
            return "at the end of its program"
        return "at %s" % where


def classify(stack: Sequence[Place]) -> Standing:
    """The standing of a thread; ``stack``: its places, innermost first."""
    for index, (file, _, function) in enumerate(stack):
        path = file.replace(os.sep, "/")
        kind, what = _kind(path, function)
        if kind:
            return Standing(kind, what, telling(stack[index + 1 :]))
        if not is_below(file):
            break
    return Standing(ELSEWHERE, "", telling(stack))


def _kind(path: str, function: str) -> Sequence[str]:
    if path.endswith("torch/distributed/distributed_c10d.py") and function.startswith(_COLLECTIVES):
        return COLLECTIVE, function
    if path.endswith("torch/nn/parallel/distributed.py"):
        return (FORWARD, "") if "forward" in function else (BUILDING, "")
    if path.endswith(("torch/autograd/__init__.py", "torch/_tensor.py")) and "backward" in function:
        return BACKWARD, ""
    if path.endswith("torch/utils/data/dataloader.py"):
        return LOADER, ""
    if path.endswith("ddp_patches/runtime/waiting.py"):
        return LEADER_WAIT, ""
    if path.endswith("ddp_patches/runtime/shared_folder.py"):
        return COLLECTIVE, "collect_results_cpu"  # which begins with a wait of ours for the other ranks
    if path.endswith("/threading.py") and function == "_shutdown":
        return LEAVING, ""
    return "", ""
