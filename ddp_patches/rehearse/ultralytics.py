"""Ultralytics in a rehearsal: the trainer plans for as many devices as ranks, and computes on the CPU.

The trainer's constructor chooses the devices and, from them, the number of workers to launch. It is let to do
so as on a machine with GPUs; afterwards the trainer's device is the CPU. The constructor of each worker
does the same once more, and so does ``_setup_ddp`` there. What follows follows ``self.device``, but for the
final evaluation.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import types
from typing import Any, Callable, Iterator

from .. import console
from ..engine.patch import patch
from . import cuda, permit

Function = Callable[..., Any]

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_TRAINER = "ultralytics.engine.trainer|ultralytics.yolo.engine.trainer:BaseTrainer"
_TORCH_UTILS = "ultralytics.utils.torch_utils|ultralytics.yolo.utils.torch_utils"

_trainers_under_construction = 0

stand_in = patch(
    "rehearse.ultralytics",
    package="ultralytics",
    summary="in a rehearsal: the trainer launches as many workers as there are ranks, which train on the CPU",
    why="Ultralytics launches workers only for the CUDA devices that it finds, and moves the model to them",
    upstream="https://docs.ultralytics.com/modes/train/#multi-gpu-training",
    since="0.1.0",
    remove_when="never: it is part of the rehearsal",
    tested=("8.0.40", "8.0.132", "8.4.0", "8.4.190"),
)


def device_string(ranks: int) -> str:
    """The value of ``device`` that stands for so many GPUs: ``0,1`` for two."""
    return ",".join(str(index) for index in range(ranks))


def with_device(overrides: Any, device: str) -> dict[str, Any]:
    """A copy of a trainer's ``overrides`` (None, a dict or a namespace) that asks for ``device``."""
    given = vars(overrides) if isinstance(overrides, types.SimpleNamespace) else overrides
    return {**dict(given or {}), "device": device}


@stand_in.replaces(_TRAINER + ".__init__", parameters=("overrides",), by_name=True)
def trainer_init(original: Function) -> Function:
    signature = inspect.signature(original)

    def replacement(self: Any, *args: Any, **keywords: Any) -> None:
        call = signature.bind(self, *args, **keywords)
        device = device_string(permit.current().ranks)
        call.arguments["overrides"] = with_device(call.arguments.get("overrides"), device)
        with _under_construction():
            original(*call.args, **call.kwargs)
        if os.environ.get("LOCAL_RANK") is None:
            console.say("device=%s stands for %d CPU processes" % (device, permit.current().ranks))
        _to_cpu(self)

    return replacement


def _setup_ddp(original: Function) -> Function:
    def replacement(self: Any, *args: Any, **keywords: Any) -> None:
        original(self, *args, **keywords)
        _to_cpu(self)

    return replacement


# One method, three signatures.
stand_in.replaces(
    _TRAINER + "._setup_ddp", parameters=("rank", "world_size"), versions="<8.0.58", by_name=True
)(_setup_ddp)
stand_in.replaces(
    _TRAINER + "._setup_ddp", parameters=("world_size",), versions=">=8.0.58,<8.3.200", by_name=True
)(_setup_ddp)
stand_in.replaces(_TRAINER + "._setup_ddp", versions=">=8.3.200")(_setup_ddp)


@stand_in.replaces(_TORCH_UTILS + ":select_device", parameters=("device",), by_name=True)
def select_device(original: Function) -> Function:
    def replacement(*args: Any, **keywords: Any) -> Any:
        if not _trainers_under_construction:  # predicting, validating: a single process, on the CPU
            return _cpu()
        with cuda.pretended_devices():
            return original(*args, **keywords)

    return replacement


# From 8.3.218 on a rank's final evaluation names the CUDA device itself.
@stand_in.replaces("ultralytics.nn.autobackend:AutoBackend.__init__", parameters=("device",), by_name=True)
def auto_backend(original: Function) -> Function:
    signature = inspect.signature(original)

    def replacement(self: Any, *args: Any, **keywords: Any) -> None:
        call = signature.bind(self, *args, **keywords)
        if call.arguments.get("device") is not None:
            call.arguments["device"] = _cpu()
        original(*call.args, **call.kwargs)

    return replacement


@contextlib.contextmanager
def _under_construction() -> Iterator[None]:
    """Around a trainer's constructor, which in releases before 8.4.100 puts its choice into the environment.

    Taken back afterwards: GPUs that are there, and hidden, must not become visible to the workers.
    """
    global _trainers_under_construction
    before: str | None = os.environ.get(_VISIBLE)
    _trainers_under_construction += 1
    try:
        yield
    finally:
        _trainers_under_construction -= 1
        if before is None:
            os.environ.pop(_VISIBLE, None)
        else:
            os.environ[_VISIBLE] = before


def _to_cpu(trainer: Any) -> None:
    trainer.device = _cpu()
    if hasattr(trainer, "accelerator"):  # newer releases: the torch module that belongs to the device
        trainer.accelerator = None


def _cpu() -> Any:
    return sys.modules["torch"].device("cpu")
