"""What a rank's main thread is doing, told from its stack alone: nothing of torch is wrapped for it.

Only a thread whose innermost frames are torch's own waits in torch. A forward pass that has come as far as
the user's model does not, although DDP's ``forward`` is on the stack as well.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Optional, Sequence

from ..stacks import Place, describe, is_below, telling

COLLECTIVE, BUILDING, FORWARD, BACKWARD = "collective", "DDP construction", "DDP forward", "DDP backward"
GPU, LOADER, LOCK = "GPU", "loader", "build lock"
LEADER_WAIT, LEAVING, ELSEWHERE = "rank-0-first block", "leaving", "elsewhere"
# In these a rank waits for the others. A rank-0-first block has lines of its own.
WAITS = (COLLECTIVE, BUILDING, FORWARD, BACKWARD)
POINT_TO_POINT = ("send", "recv")

C10D = "torch/distributed/distributed_c10d.py"
DDP = "torch/nn/parallel/distributed.py"
# Where a rank waits for others in there, by the start of the function's name.
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
    """``kind``: one of the above; ``what``: the collective; ``place``: the user's file, line, function.

    ``frames``: how many of the innermost frames only say how the thing named is done. A wait that polls
    goes back and forth among them, without the thread getting anywhere.
    """

    kind: str
    what: str
    place: Optional[Place]
    frames: int = 0

    def sentence(self) -> str:
        """``in all_reduce, called at heads/focal.py:338 in loss``."""
        where = describe(self.place)
        if self.kind == COLLECTIVE:
            return "in %s, called at %s" % (self.what, where)
        if self.kind == GPU:
            return "waiting for the GPU at %s" % where
        if self.kind == LOCK:
            return "waiting for the lock of a C++ extension's build at %s" % where
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
        kind, what = _kind(_path(file), function)
        if kind == BUILDING and _is_called_by_forward(stack[index:]):
            kind = FORWARD
        if kind:
            return Standing(kind, what, telling(stack[index + 1 :]), index + 1)
        if not is_below(file):
            break
    return Standing(ELSEWHERE, "", telling(stack))


def _path(file: str) -> str:
    return file.replace(os.sep, "/")


def _is_called_by_forward(stack: Sequence[Place]) -> bool:
    """Whether DDP's functions, the innermost of ``stack``, are at work for a forward pass."""
    for file, _, function in stack:
        if not _path(file).endswith(DDP):
            return False
        if "forward" in function:
            return True
    return False


def _kind(path: str, function: str) -> Sequence[str]:
    if path.endswith(C10D) and function.startswith(_COLLECTIVES):
        return COLLECTIVE, function
    if path.endswith(DDP):
        return BUILDING, ""
    if path.endswith(("torch/autograd/__init__.py", "torch/_tensor.py")) and "backward" in function:
        return BACKWARD, ""
    if path.endswith(("torch/cuda/__init__.py", "torch/cuda/streams.py")) and "synchronize" in function:
        return GPU, ""
    if path.endswith("torch/utils/data/dataloader.py"):
        return LOADER, ""
    if path.endswith("torch/utils/file_baton.py"):
        return LOCK, ""
    if path.endswith("ddp_patches/runtime/waiting.py"):
        return LEADER_WAIT, ""
    if path.endswith("ddp_patches/runtime/shared_folder.py"):
        return COLLECTIVE, "collect_results_cpu"  # which begins with a wait of ours for the other ranks
    if path.endswith("ddp_patches/runtime/closing.py"):
        return LEAVING, ""
    if path.endswith("/threading.py") and function == "_shutdown":
        return LEAVING, ""
    return "", ""
