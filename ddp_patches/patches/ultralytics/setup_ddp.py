"""``BaseTrainer._setup_ddp``: the rank's own GPU, all ranks of the job, and no blocking wait.

Device. Releases before 8.4.87 use the *global* rank as device index: the first rank of the second node
asks for a GPU that does not exist ("invalid device ordinal",
https://github.com/ultralytics/ultralytics/issues/20915). Here it gets the GPU of its LOCAL_RANK, in all
places: ``torch.cuda.set_device`` and ``self.device``; the ``device_ids`` of DDP and, where the data sets
are built, of barriers; from 8.3.218 on the device of the final evaluation. Where RANK equals LOCAL_RANK
upstream is right, and nothing is changed. Releases from 8.4.87 on read the index from the device string
themselves.

World size. Every release takes the number of devices named in ``device`` for the number of ranks, so
that on two nodes with two GPUs each the ranks 2 and 3 join a group of two. In exactly that case, when
``device`` names this node's devices and the launcher started more nodes, the launcher's WORLD_SIZE is
used. The batch is then divided among all ranks, and the loss scaled by their number, as upstream's own
formulas do.

Blocking wait. From 8.0.110 on upstream exports it right before it makes the group. What is decided in
``runtime.blocking_wait`` is carried out between the two, also where ``torch.process_group_timeout``,
which does the same for all frameworks, is skipped.

Upstream's function reads the module's RANK for the device and for the group alike, so it is not its
RANK that is changed: for the duration of the call, what it calls is. Which GPU, and how many ranks, is
decided in ``_decisions``.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from typing import Any, Callable

from ... import console
from ...engine import ledger
from ...engine.patch import patch
from .._exchange import exchanged
from .._job import settle_blocking_wait
from ._decisions import device_index, job_world_size, number

ID = "ultralytics.setup_ddp"
TRAINER = "ultralytics.engine.trainer|ultralytics.yolo.engine.trainer:BaseTrainer."
TARGET = TRAINER + "_setup_ddp"

setup_ddp = patch(
    ID,
    package="ultralytics",
    summary="GPU by LOCAL_RANK, all ranks of all nodes in the group, blocking wait replaced",
    why="the second node asks for GPUs that it does not have; blocking wait turns slow steps into aborts",
    upstream="https://github.com/ultralytics/ultralytics/issues/20915",
    since="0.1.0",
    remove_when="upstream counts the ranks of all nodes and leaves NCCL's blocking wait alone",
    tested=(
        "8.0.40",
        "8.0.100",
        "8.0.120",
        "8.0.132",
        "8.1.20",
        "8.2.103",
        "8.3.190",
        "8.4.0",
        "8.4.100",
        "8.4.190",
    ),
)

Function = Callable[..., Any]


@setup_ddp.replaces(
    TRAINER + "_do_train", parameters=("rank", "world_size"), versions="<8.0.58", by_name=True
)
@setup_ddp.replaces(
    TRAINER + "_do_train", parameters=("world_size",), versions=">=8.0.58,<8.3.200", by_name=True
)
@setup_ddp.replaces(TRAINER + "_do_train", versions=">=8.3.200,<8.4.87")
def train_by_rank(original: Function) -> Function:
    def replacement(self: Any, *arguments: Any, **keywords: Any) -> Any:
        call = arguments, keywords
        arguments, keywords = ledger.attempt(ID, lambda: _for_all_ranks(original, self, *call), call)
        with contextlib.ExitStack() as stack:
            ledger.attempt(ID, lambda: _watch_devices(stack, self), None)
            return original(self, *arguments, **keywords)

    return replacement


@setup_ddp.replaces(TRAINER + "_do_train", versions=">=8.4.87")
def train_by_device_string(original: Function) -> Function:
    def replacement(self: Any, *arguments: Any, **keywords: Any) -> Any:
        call = arguments, keywords
        arguments, keywords = ledger.attempt(ID, lambda: _for_all_ranks(original, self, *call), call)
        return original(self, *arguments, **keywords)

    return replacement


@setup_ddp.replaces(TARGET, parameters=("rank", "world_size"), versions="<8.0.58", by_name=True)
@setup_ddp.replaces(TARGET, parameters=("world_size",), versions=">=8.0.58,<8.3.200", by_name=True)
@setup_ddp.replaces(TARGET, versions=">=8.3.200,<8.4.87")
def setup_by_rank(original: Function) -> Function:
    def replacement(self: Any, *arguments: Any, **keywords: Any) -> Any:
        moved: dict[int, int] = {}
        with contextlib.ExitStack() as stack:
            ledger.attempt(ID, lambda: _watch_set_device(stack, self, moved), None)
            ledger.attempt(ID, lambda: _watch_init(stack, self), None)
            result = original(self, *arguments, **keywords)
        ledger.attempt(ID, lambda: _correct_device(self, moved), None)
        return result

    return replacement


@setup_ddp.replaces(TARGET, versions=">=8.4.87")
def setup_by_device_string(original: Function) -> Function:
    def replacement(self: Any, *arguments: Any, **keywords: Any) -> Any:
        with contextlib.ExitStack() as stack:
            ledger.attempt(ID, lambda: _watch_init(stack, self), None)
            return original(self, *arguments, **keywords)

    return replacement


def _for_all_ranks(original: Function, trainer: Any, arguments: Any, keywords: Any) -> tuple[Any, Any]:
    """The arguments of ``_do_train`` with the world size of the job; from 8.3.200 on it is an attribute."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return arguments, keywords  # the user's own group, whose size is settled
    bound = inspect.signature(original).bind(trainer, *arguments, **keywords)
    bound.apply_defaults()
    given = "world_size" in bound.arguments
    named = bound.arguments["world_size"] if given else trainer.world_size
    ranks = job_world_size(named, os.environ)
    if ranks == named:
        return arguments, keywords
    if given:
        bound.arguments["world_size"] = ranks
    else:
        trainer.world_size = ranks
    if os.environ.get("RANK") == "0":
        console.say(
            "%d ranks on %d nodes train together; device=%r alone would have made a group of %d on each. "
            "batch is the total of all ranks." % (ranks, ranks // named, trainer.args.device, named)
        )
    return bound.args[1:], bound.kwargs


def _watch_set_device(stack: contextlib.ExitStack, trainer: Any, moved: dict[int, int]) -> None:
    """Let ``torch.cuda.set_device`` get this rank's own index; ``moved`` tells which one went where."""
    import torch

    upstream = torch.cuda.set_device

    def own(device: Any) -> Any:
        index = _own_index(device, trainer.args.device)
        if index != device:
            moved[device] = index
            reason = "rank %s uses cuda:%d, upstream asked for cuda:%s"
            ledger.record(ID, TARGET, reason=reason % (os.environ.get("RANK"), index, device))
        return index

    def set_device(device: Any) -> None:
        upstream(ledger.attempt(ID, lambda: own(device), device))

    stack.enter_context(exchanged(torch.cuda, "set_device", set_device))


def _watch_init(stack: contextlib.ExitStack, trainer: Any) -> None:
    """Settle blocking wait after upstream has switched it on, and before the group is made."""
    import torch

    if str(trainer.args.device).lower().startswith(("npu", "xpu")):
        return
    upstream = torch.distributed.init_process_group

    def init_process_group(*arguments: Any, **keywords: Any) -> Any:
        ledger.attempt(ID, settle_blocking_wait, None)
        return upstream(*arguments, **keywords)

    stack.enter_context(exchanged(torch.distributed, "init_process_group", init_process_group))


def _correct_device(trainer: Any, moved: dict[int, int]) -> None:
    import torch

    device = trainer.device
    if device.type == "cuda" and device.index in moved:
        trainer.device = torch.device("cuda", moved[device.index])


def _watch_devices(stack: contextlib.ExitStack, trainer: Any) -> None:
    """While it trains, let DDP, barriers and validation get this rank's device where they are given its rank.

    DDP's ``__init__`` is exchanged and not the class, which upstream also uses in isinstance tests.
    """
    import torch

    rank = number(os.environ.get("RANK"))
    if rank is None or os.environ.get("LOCAL_RANK") in (None, str(rank)):
        return

    def corrected(keywords: dict[str, Any]) -> dict[str, Any]:
        own = _own_index(rank, trainer.args.device)
        if trainer.device != torch.device("cuda", own):
            return keywords  # a trainer that chooses its device in another way than we do
        if keywords.get("device_ids") == [rank]:
            return dict(keywords, device_ids=[own])
        if keywords.get("device") == torch.device("cuda", rank):
            return dict(keywords, device=torch.device("cuda", own))
        return keywords

    def correcting(upstream: Function) -> Function:
        def call(*arguments: Any, **keywords: Any) -> Any:
            return upstream(*arguments, **ledger.attempt(ID, lambda: corrected(keywords), keywords))

        return call

    validator = sys.modules.get("ultralytics.engine.validator")  # elsewhere before 8.0.136, and right there
    for owner, name in (
        (torch.nn.parallel.DistributedDataParallel, "__init__"),
        (torch.distributed, "barrier"),
        (validator, "AutoBackend"),
    ):
        if owner is not None:
            stack.enter_context(exchanged(owner, name, correcting(getattr(owner, name))))


def _own_index(asked: Any, device: Any) -> Any:
    """:func:`device_index` with what this process knows; anything but a number stays as it is."""
    import torch

    if type(asked) is not int:
        return asked
    count = torch.cuda.device_count()
    if torch.cuda.is_initialized():
        # device_count() may read CUDA_VISIBLE_DEVICES anew; the driver, once started, does not.
        count = torch._C._cuda_getDeviceCount()
    local_rank = number(os.environ.get("LOCAL_RANK"))
    return device_index(asked, local_rank, device, os.environ.get("CUDA_VISIBLE_DEVICES"), count)
