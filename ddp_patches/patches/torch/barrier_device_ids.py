"""``torch.distributed.barrier``: name the GPU instead of letting NCCL guess it.

Why: without ``device_ids`` torch derives the GPU from the global rank (before 2.5) or takes the
current device, which is 0 on every rank if nobody has set it. The wrong guess hangs the first
barrier, or puts a context of every rank on GPU 0. With ``device_ids`` on a backend or a torch that
does not know them the call fails.

How: only on NCCL, only if the caller named no device and the group has none bound.

Upstream: https://github.com/pytorch/pytorch/issues/124714, https://github.com/ultralytics/yolov5/issues/4480
"""

from __future__ import annotations

import inspect
import os
from typing import Any, Callable, List, Optional

from ...engine import ledger
from ...engine.patch import patch
from ...runtime import identity

ID = "torch.barrier_device_ids"
_WITHOUT_DEVICES = ("gloo", "mpi")

PATCH = patch(
    ID,
    package="torch",
    summary="names the GPU of a barrier on NCCL if the caller did not; drops device_ids where refused",
    why="NCCL guesses the GPU of the first barrier from the global rank, and hangs or fills GPU 0",
    upstream="https://github.com/pytorch/pytorch/issues/124714",
    since="0.1.0",
    remove_when="barrier() takes the device of LOCAL_RANK where nobody has named one",
    tested=("1.12.1", "1.13.1", "2.0.1", "2.9.1", "2.13.0", "2.14.1"),
)


def decide(
    backend: str,
    given: Optional[List[int]],
    has_bound_device: bool,
    current_device: int,
    device_count: int,
    local_rank: Optional[int],
) -> Optional[List[int]]:
    """The ``device_ids`` to pass, None for none.

    Args:
        backend: of the group, such as ``nccl``.
        given: the caller's ``device_ids``.
        has_bound_device: the group was made with ``device_id``; torch then knows better than anyone.
        current_device: index of the current CUDA device; 0 also if nobody has set it.
        device_count: CUDA devices that this process sees.
        local_rank: LOCAL_RANK of the launcher, None without one.
    """
    if backend in _WITHOUT_DEVICES:
        return None  # refused on torch before 2.1, and without meaning on later ones
    if backend != "nccl" or given is not None:
        return given  # several backends in one group, or another maker's: torch knows better
    if has_bound_device:
        return None
    if current_device == 0 and local_rank is not None and 0 < local_rank < device_count:
        return [local_rank]  # nobody has set the device: 0 would be every rank's
    return [current_device]


@PATCH.replaces("torch.distributed.distributed_c10d:barrier", parameters=("group",), by_name=True)
def barrier(original: Callable[..., Any]) -> Callable[..., Any]:
    """Same arguments and result as upstream's; ``device_ids`` is accepted on every torch and backend."""
    signature = inspect.signature(original)
    knows_device_ids = "device_ids" in signature.parameters

    def replacement(*args: Any, **keywords: Any) -> Any:
        if not knows_device_ids:  # torch before 1.8
            keywords.pop("device_ids", None)
            return original(*args, **keywords)
        bound = ledger.attempt(ID, lambda: _bind(signature, args, keywords), None)
        if bound is None:
            return original(*args, **keywords)
        return original(*bound.args, **bound.kwargs)

    return replacement


def _bind(signature: inspect.Signature, args: Any, keywords: Any) -> inspect.BoundArguments:
    import torch
    import torch.distributed.distributed_c10d as c10d

    bound = signature.bind(*args, **keywords)
    group = bound.arguments.get("group")
    if not c10d.is_initialized() or group is c10d.GroupMember.NON_GROUP_MEMBER:
        return bound  # upstream says so
    given = bound.arguments.get("device_ids")
    if group is None:
        group = c10d._get_default_group()
    backend = str(c10d.get_backend(group))
    on_nccl = backend == "nccl"
    chosen = decide(
        backend,
        given,
        has_bound_device=getattr(group, "bound_device_id", None) is not None,
        current_device=torch.cuda.current_device() if on_nccl and given is None else 0,
        device_count=torch.cuda.device_count() if on_nccl and given is None else 0,
        local_rank=identity.local_rank_of(os.environ),
    )
    if chosen != given:
        bound.arguments["device_ids"] = chosen
    return bound
