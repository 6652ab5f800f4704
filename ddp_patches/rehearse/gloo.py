"""``torch.distributed`` in a rehearsal: gloo in the place of NCCL, and no device indices."""

from __future__ import annotations

import inspect
import sys
from typing import Any, Callable

from ..engine.patch import patch

Function = Callable[..., Any]

# NCCL and what stands for it on other accelerators.
_DEVICE_BACKENDS = frozenset(["nccl", "rccl", "hccl", "xccl", "ccl", "cncl", "mccl", "eccl"])

gloo = patch(
    "rehearse.gloo",
    package="torch",
    summary="in a rehearsal: process groups and DistributedDataParallel work on the CPU, over gloo",
    why="NCCL refuses to start without a GPU, and a module on the CPU has no device index",
    upstream="https://docs.pytorch.org/docs/stable/distributed.html#backends",
    since="0.1.0",
    remove_when="never: it is part of the rehearsal",
)


def rehearsed_backend(backend: str | None) -> str | None:
    """The backend to use in the place of ``backend``: gloo for one that needs devices, else itself.

    None, torch's default, means NCCL and gloo together where this torch has both. A string such as
    ``cpu:gloo,cuda:nccl`` names one backend for each kind of device.
    """
    if backend is None:
        return "gloo"
    names = {part.rpartition(":")[2].strip().lower() for part in str(backend).split(",")}
    return "gloo" if names & _DEVICE_BACKENDS else backend


@gloo.replaces("torch.distributed.distributed_c10d:init_process_group", parameters=("backend",), by_name=True)
def init_process_group(original: Function) -> Function:
    signature = inspect.signature(original)

    def replacement(*args: Any, **keywords: Any) -> Any:
        call = signature.bind_partial(*args, **keywords)
        given = call.arguments.get("backend")
        if rehearsed_backend(given) != given:
            call.arguments["backend"] = rehearsed_backend(given)
            call.arguments.pop("pg_options", None)  # they are made for one backend
        call.arguments.pop("device_id", None)
        return original(*call.args, **call.kwargs)

    return replacement


@gloo.replaces("torch.distributed.distributed_c10d:new_group", parameters=("backend",), by_name=True)
def new_group(original: Function) -> Function:
    signature = inspect.signature(original)

    def replacement(*args: Any, **keywords: Any) -> Any:
        call = signature.bind_partial(*args, **keywords)
        given = call.arguments.get("backend")
        # None is the default group's backend here, which is not NCCL any more.
        if given is not None and rehearsed_backend(given) != given:
            call.arguments["backend"] = rehearsed_backend(given)
            call.arguments.pop("pg_options", None)
        call.arguments.pop("device_id", None)
        return original(*call.args, **call.kwargs)

    return replacement


@gloo.replaces("torch.distributed.distributed_c10d:barrier", parameters=("device_ids",), by_name=True)
def barrier(original: Function) -> Function:
    signature = inspect.signature(original)

    def replacement(*args: Any, **keywords: Any) -> Any:
        # Some versions of torch refuse the argument for gloo, others put a tensor on the device it names.
        call = signature.bind(*args, **keywords)
        call.arguments.pop("device_ids", None)
        return original(*call.args, **call.kwargs)

    return replacement


@gloo.replaces("torch.distributed.distributed_c10d:broadcast", parameters=("tensor", "src"), by_name=True)
def broadcast(original: Function) -> Function:
    signature = inspect.signature(original)

    def replacement(*args: Any, **keywords: Any) -> Any:
        # NCCL sends bools, gloo refuses them up to torch 2.0 at least ("Invalid scalar type"). Releases of
        # Ultralytics send one, whether mixed precision works. The view has the tensor's own memory.
        call = signature.bind(*args, **keywords)
        torch = sys.modules["torch"]
        if call.arguments["tensor"].dtype is torch.bool:
            call.arguments["tensor"] = call.arguments["tensor"].view(torch.uint8)
        return original(*call.args, **call.kwargs)

    return replacement


@gloo.replaces(
    "torch.nn.parallel.distributed:DistributedDataParallel.__init__",
    parameters=("module", "device_ids", "output_device"),
    by_name=True,
)
def distributed_data_parallel(original: Function) -> Function:
    signature = inspect.signature(original)

    def replacement(*args: Any, **keywords: Any) -> None:
        call = signature.bind(*args, **keywords)
        parameters = list(call.arguments["module"].parameters())
        if all(parameter.device.type == "cpu" for parameter in parameters):
            call.arguments.pop("device_ids", None)
            call.arguments.pop("output_device", None)
        original(*call.args, **call.kwargs)

    return replacement
