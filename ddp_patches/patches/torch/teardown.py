"""The end of a process that has process groups: destroy each once, without a collective.

Why: no Ultralytics release and no OpenMMLab runner destroys its group. Left alone, the exit of a
2-rank job aborted in 2 of 15 runs ("terminate called without an active exception"), and NCCL prints
a page of warnings. A barrier before the destruction is no cure: it pairs with a peer's next
all-reduce, and both sit until the limit.

How: when the main thread and the user's own threads have ended, the groups are destroyed on a thread
of ours, with a bound. A group that the user destroys himself is left to him. After an uncaught
exception there may be collectives that will never end, and destroying waits for them. NCCL groups are
left alone then. Gloo waits for them at the end of the process in any case, holding the interpreter's
lock, up to the limit of the collectives: the connections to the peers are shut down first, and they
hear at once what they would hear when the process is gone.

After success the process that hosts the job's store, and with it everybody's, stays for the ranks that
still work (setting ``exit_wait``, see ``runtime/exit_wait.py``).

Upstream: https://github.com/ultralytics/yolov5/pull/8935, https://github.com/pytorch/pytorch/issues/126275
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import time
from typing import Any, Callable, List, Set

from ... import settings
from ...engine import ledger
from ...engine.patch import patch
from ...runtime import closing, connections, exit_wait, job, limits, sockets
from ...runtime.stall import groups

ID = "torch.teardown"
_WORKERS_SECONDS = 0.1

PATCH = patch(
    ID,
    package="torch",
    summary="destroys each process group once when the process ends, without a collective, with a bound; "
    "where rank 0 hosts the job's store, it stays for the ranks that still work",
    why="jobs that abort or hang after the last epoch because nobody destroys the group, or only rank 0 does",
    upstream="https://github.com/pytorch/pytorch/issues/126275",
    since="0.1.0",
    remove_when="torch destroys its groups itself when the interpreter ends",
    tested=("1.12.1", "1.13.1", "2.0.1", "2.9.1", "2.13.0", "2.14.1"),
)


class _End:
    """What is known about the end of this process's groups."""

    destroyed_by_us = False
    take_back: Callable[[], None] = staticmethod(lambda: None)


@PATCH.replaces(
    "torch.distributed.distributed_c10d:init_process_group", parameters=("backend",), by_name=True
)
def init_process_group(original: Callable[..., Any]) -> Callable[..., Any]:
    """Same arguments and result as upstream's; afterwards the process knows how to end."""

    def replacement(*args: Any, **keywords: Any) -> Any:
        before = _sockets()
        result = original(*args, **keywords)
        ledger.attempt(ID, lambda: _arm(before), None)
        return result

    return replacement


@PATCH.replaces("torch.distributed.distributed_c10d:new_group")
def new_group(original: Callable[..., Any]) -> Callable[..., Any]:
    """Same arguments and result as upstream's; its connections are remembered."""

    def replacement(*args: Any, **keywords: Any) -> Any:
        before = _sockets()
        result = original(*args, **keywords)
        ledger.attempt(ID, lambda: connections.add(before), None)
        return result

    return replacement


@PATCH.replaces(
    "torch.distributed.distributed_c10d:destroy_process_group", parameters=("group",), by_name=True
)
def destroy_process_group(original: Callable[..., Any]) -> Callable[..., Any]:
    """Ends the job for us before upstream destroys the default group."""
    signature = inspect.signature(original)

    def replacement(*args: Any, **keywords: Any) -> Any:
        if _End.destroyed_by_us:
            return None  # an atexit handler of the user's: everything is gone already
        ledger.attempt(
            ID, lambda: _user_destroys(signature.bind(*args, **keywords).arguments.get("group")), None
        )
        ledger.attempt(ID, _before_destruction, None)
        return original(*args, **keywords)

    return replacement


def _before_destruction() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        _let_workers_finish(dist.get_backend())


def _let_workers_finish(backend: str) -> None:
    """Gloo's threads let go of the last collective's tensors, for which they need the interpreter's lock.

    Torch 2.0 holds that lock while it waits for these threads in the destruction: destroying right after
    a collective hung in 2 of 2 runs of a few rounds, without ddp_patches.
    """
    if backend == "gloo":
        time.sleep(_WORKERS_SECONDS)


def _sockets() -> Set[sockets.Handle]:
    nothing: Set[sockets.Handle] = set()
    return ledger.attempt(ID, sockets.opened, nothing)


def _arm(sockets_before: Set[sockets.Handle]) -> None:
    import torch
    import torch.distributed as dist

    _End.take_back()
    _End.destroyed_by_us = False
    connections.begin(sockets_before)
    pid = os.getpid()
    error_before = getattr(sys, "last_value", None)
    backend = dist.get_backend()
    device: List[int] = []  # of the main thread, which may choose one after it has made the group

    def look() -> None:
        if backend == "nccl" and torch.cuda.is_initialized():
            device.append(torch.cuda.current_device())

    def destroy() -> None:
        if os.getpid() != pid or not dist.is_initialized():
            return
        failed = getattr(sys, "last_value", None) is not error_before
        if failed and backend == "nccl":
            return
        if device:
            torch.cuda.set_device(device[-1])
        running = job.current()
        if running is not None and not failed and exit_wait.is_due(running):
            _outlive_the_others(running, destroy_groups, first=backend == "gloo")
            return
        _end_of_job(at_exit=True)
        if failed:
            connections.shut()
        destroy_groups()

    def destroy_groups() -> None:
        dist.destroy_process_group()  # ours, which lets gloo's threads finish first
        _End.destroyed_by_us = True

    _End.take_back = staticmethod(closing.at_end("destroying the process groups", destroy, look))


def _user_destroys(group: Any) -> None:
    import torch.distributed.distributed_c10d as c10d

    if group is None or group is getattr(c10d.GroupMember, "WORLD", None):
        _End.take_back()
        _end_of_job()


def _outlive_the_others(host: job.Job, destroy_groups: Callable[[], None], first: bool) -> None:
    """The wait of the process that hosts the store.

    ``first``: destroy the groups before it. Gloo's peers then hear at once that this rank comes to no further
    collective. With NCCL the destruction may itself wait for the peers.
    """
    import torch.distributed.distributed_c10d as c10d

    store = c10d._get_default_store()  # not to end with the group
    host.take_leave(0.5)
    waiting = exit_wait.ExitWait(host, groups.counters())
    job.set_current(None)
    with contextlib.ExitStack() as stack:
        stack.callback(limits.forget_groups)
        if not first:
            stack.callback(destroy_groups)
        stack.callback(host.close, 2.0, at_exit=True)
        stack.callback(_wait, waiting)
        if first:
            destroy_groups()
    del store


def _wait(waiting: exit_wait.ExitWait) -> None:
    for stream in (sys.stdout, sys.stderr):  # the interpreter writes it out only at its end
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with closing.with_a_bound_of_its_own(settings.current().exit_wait) as hurry:
        waiting.until_nobody_works(hurry)


def _end_of_job(at_exit: bool = False) -> None:
    running = job.current()
    if running is not None:
        running.close(2.0, at_exit)
        job.set_current(None)
    limits.forget_groups()
