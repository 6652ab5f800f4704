"""YOLOv5 in a rehearsal: ``train.py`` goes the way of GPUs, and its tensors stay on the CPU.

``train.py`` makes its own device, ``torch.device("cuda", LOCAL_RANK)``, and wraps the model for distributed
training only if that is no CPU. It runs as ``__main__``, where nothing can be stood in for. So the device
stays what it is, and whoever puts a tensor there gets one on the CPU: torch lets all its functions come past
a *function mode*, which is entered when a rank selects its device, and never left.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Optional

from .. import console
from ..engine.patch import patch
from . import cuda, permit

Function = Callable[..., Any]

stand_in = patch(
    "rehearse.yolov5",
    package="yolov5",
    summary="in a rehearsal: YOLOv5 finds a device for each rank, and what it puts there stays on the CPU",
    why="train.py insists on CUDA devices in distributed training",
    upstream="https://docs.ultralytics.com/yolov5/tutorials/multi_gpu_training/",
    since="0.1.0",
    remove_when="never: it is part of the rehearsal",
    condition=lambda: None if _has_modes() else "this torch has no function modes: it is too old",
)

_is_entered = False


def stranger(original: Function) -> Optional[str]:
    """Why ``original`` is not the function of YOLOv5 and its descendants, None if it is."""
    constants = getattr(getattr(original, "__code__", None), "co_consts", ())
    return None if "CUDA_VISIBLE_DEVICES" in constants else "this is not YOLOv5's function"


def _select_device(original: Function) -> Function:
    def replacement(*arguments: Any, **keywords: Any) -> Any:
        if "LOCAL_RANK" not in os.environ:  # detecting, validating: a single process, on the CPU
            return original(*arguments, **keywords)
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        try:
            with cuda.pretended_devices():
                found = original(*arguments, **keywords)
        finally:
            # GPUs that are there, and hidden, stay so.
            if given is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = given
        _enter()
        return found

    return replacement


stand_in.replaces(
    "yolov5.utils.torch_utils:select_device", parameters=("device",), stranger=stranger, by_name=True
)(_select_device)
stand_in.replaces("utils.torch_utils:select_device", parameters=("device",), stranger=stranger, by_name=True)(
    _select_device
)


def on_cpu(value: Any) -> Any:
    """``value``, or the CPU if it names a CUDA device."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    is_name = isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))
    return torch.device("cpu") if is_name else value


def _has_modes() -> bool:
    import torch.overrides

    return hasattr(torch.overrides, "TorchFunctionMode")


def _enter() -> None:
    """Let this thread's tensors stay on the CPU from now on."""
    global _is_entered
    if _is_entered:
        return
    _is_entered = True
    import torch
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.device:
                return function(*args, **(kwargs or {}))
            given = {name: on_cpu(value) for name, value in (kwargs or {}).items()}
            return function(*map(on_cpu, args), **given)

    OnCpu().__enter__()
    if os.environ.get("RANK") == "0":
        console.say("cuda:LOCAL_RANK stands for the CPU on each of %d ranks" % permit.current().ranks)
