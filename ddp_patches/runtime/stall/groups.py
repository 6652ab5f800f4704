"""The process groups of this rank: how many collectives each has begun, and which one a frame waits in.

Names of torch's own that may change are read here; where they are not found, the answer is empty.
"""

from __future__ import annotations

import os
from types import FrameType
from typing import Any, Dict, List, Optional

from .standing import C10D

_DEFAULT = "default"


def counters() -> Dict[str, int]:
    """How many collectives this rank has begun, by group; torch counts them. Empty where it cannot say.

    On gloo and NCCL they start at a number that the ranks of a group share. Send and receive count
    since torch 2.1 or so; on NCCL a collective counts when it is handed to the GPU.
    """
    import torch.distributed.distributed_c10d as c10d

    world = getattr(c10d, "_world", None)
    known = world.pg_map if world is not None else c10d._pg_map
    names = world.pg_names if world is not None else getattr(c10d, "_pg_names", {})
    default = _default(c10d)
    counts = {}
    for group in list(known):
        name = _DEFAULT if group is default else "group %s" % names.get(group, "")
        try:
            counts[name] = int(group._get_sequence_number_for_group())
        except (RuntimeError, AttributeError):  # a backend, or a torch, that does not count
            continue
    return counts


def backend() -> str:
    """``gloo``, ``nccl``, … of the default group."""
    import torch.distributed as dist

    try:
        return str(dist.get_backend())
    except (RuntimeError, ValueError):  # destroyed meanwhile
        return ""


def counts_started_work(backend: str) -> bool:
    """Whether the counters of ``backend`` say what has been handed to the GPU, and not what has been done."""
    return backend not in ("", "gloo", "mpi")


def members(frame: Optional[FrameType]) -> List[int]:
    """The ranks of the group whose collective a thread is in; empty for the default group.

    ``frame``: the innermost one of the thread.
    """
    import torch.distributed.distributed_c10d as c10d

    while frame is not None:
        if frame.f_code.co_filename.replace(os.sep, "/").endswith(C10D) and "group" in frame.f_locals:
            return _ranks(c10d, frame.f_locals["group"])
        frame = frame.f_back
    return []


def _default(c10d: Any) -> Any:
    return getattr(c10d.GroupMember, "WORLD", None)


def _ranks(c10d: Any, group: Any) -> List[int]:
    if group is None or group is _default(c10d):
        return []
    world = getattr(c10d, "_world", None)
    ranks = world.pg_group_ranks if world is not None else getattr(c10d, "_pg_group_ranks", {})
    return sorted(int(rank) for rank in ranks.get(group, {}))
