"""``torch.cuda`` in a rehearsal: as many devices as ranks for who counts them, none for who uses them."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any, Callable, Iterator

from ..engine.patch import patch
from . import permit

Function = Callable[..., Any]

_current_index = 0
_pretending = 0  # how many frameworks are choosing devices at the moment


@contextlib.contextmanager
def pretended_devices() -> Iterator[None]:
    """Inside, CUDA seems to be there: for a framework's choice of devices, which touches none of them yet."""
    global _pretending
    _pretending += 1
    try:
        yield
    finally:
        _pretending -= 1


cuda = patch(
    "rehearse.cuda",
    package="torch",
    summary="in a rehearsal: torch.cuda counts a device for each rank, and selecting one does nothing",
    why="launchers count devices and ranks select theirs before anything is computed on it",
    upstream="https://docs.pytorch.org/docs/stable/cuda.html",
    since="0.1.0",
    remove_when="never: it is part of the rehearsal",
)


@cuda.replaces("torch.cuda:set_device", parameters=("device",))
def set_device(original: Function) -> Function:
    def replacement(device: Any) -> None:
        global _current_index
        index = device if isinstance(device, int) else sys.modules["torch"].device(device).index
        _current_index = max(index or 0, 0)

    return replacement


@cuda.replaces("torch.cuda:current_device")
def current_device(original: Function) -> Function:
    def replacement() -> int:
        return _current_index

    return replacement


@cuda.replaces("torch.cuda:device_count", of_any_shape=True)  # torch 1.13 to 2.0 keep the answer
def device_count(original: Function) -> Function:
    def replacement() -> int:
        # torch's own code goes on to use what it counts; everybody else is told what the rehearsal is for.
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return 0 if caller.partition(".")[0] == "torch" else permit.current().ranks

    return replacement


@cuda.replaces("torch.cuda:is_available")
def is_available(original: Function) -> Function:
    # Not upstream's answer: a command that sets CUDA_VISIBLE_DEVICES itself would bring hidden devices back.
    def replacement() -> bool:
        return _pretending > 0

    return replacement


@cuda.replaces("torch.nn.modules.module:Module.cuda", parameters=("device",))
def module_cuda(original: Function) -> Function:
    def replacement(self: Any, device: Any = None) -> Any:
        return self

    return replacement


@cuda.replaces("torch.cuda:get_device_properties", parameters=("device",))
def get_device_properties(original: Function) -> Function:
    def replacement(device: Any = None) -> Any:
        if _pretending:
            return types.SimpleNamespace(name="CPU in a rehearsal", total_memory=0, major=0, minor=0)
        return original(device)

    return replacement
