"""``torch.distributed.init_process_group`` and ``new_group``: a floor for the limit of collectives.

Why: a rank-0-only phase (label scan, validation, metric computation) that is longer than the group's
limit ends the whole job. The limit stands in the code that calls ``init_process_group`` and often
cannot be set from a configuration; a subgroup made without one has 10 or 30 minutes however long
the default group's is.

How: the ranks meet under the caller's own limit, so that a node that never comes costs no more than
upstream. Once the group exists, the limit of its collectives is raised to the setting ``timeout`` if
the caller's is shorter. This is also where the job begins for us: each rank publishes its record, and
rank 0 prints the start line.

Upstream: https://github.com/open-mmlab/mmengine/issues/873,
https://github.com/ultralytics/ultralytics/issues/1439
"""

from __future__ import annotations

import contextlib
import datetime
import inspect
import os
import sys
from typing import Any, Callable, Dict, Iterator, Optional

from ... import settings
from ...engine import ledger
from ...engine.patch import patch
from ...runtime import blocking_wait, closing, job, limits, records, start_line

ID = "torch.process_group_timeout"
_FRAMEWORKS = ("torch", "ultralytics", "yolov5", "mmengine", "mmcv", "mmdet", "mmdet3d")

PATCH = patch(
    ID,
    package="torch",
    summary="a floor for the time limit of collectives; says who is missing at the start; the start line",
    why="a rank-0-only phase outlives the process group's limit of 10 or 30 minutes",
    upstream="https://github.com/open-mmlab/mmengine/issues/873",
    since="0.1.0",
    remove_when="torch reads a default limit from the environment",
)


@PATCH.replaces(
    "torch.distributed.distributed_c10d:init_process_group",
    parameters=("backend", "init_method", "timeout", "world_size", "rank", "store"),
)
def init_process_group(original: Callable[..., Any]) -> Callable[..., Any]:
    """Same arguments and result as upstream's, in every torch release."""
    signature = inspect.signature(original)

    def replacement(*args: Any, **keywords: Any) -> Any:
        ledger.attempt(ID, lambda: blocking_wait.settle(os.environ), None)
        beginning = ledger.attempt(ID, lambda: _Beginning(signature, args, keywords), None)
        if beginning is None:
            return original(*args, **keywords)
        with beginning.meeting():
            result = original(*beginning.bound.args, **beginning.bound.kwargs)
        ledger.attempt(ID, beginning.group_exists, None)
        return result

    return replacement


@PATCH.replaces("torch.distributed.distributed_c10d:new_group", parameters=("timeout", "backend"))
def new_group(original: Callable[..., Any]) -> Callable[..., Any]:
    """An explicit limit is kept; a missing one is the floor instead of the backend's default."""
    signature = inspect.signature(original)

    def replacement(*args: Any, **keywords: Any) -> Any:
        bound = ledger.attempt(ID, lambda: _with_floor(signature, args, keywords), None)
        if bound is None:
            return original(*args, **keywords)
        return original(*bound.args, **bound.kwargs)

    return replacement


def _with_floor(signature: inspect.Signature, args: Any, keywords: Any) -> inspect.BoundArguments:
    import torch.distributed.distributed_c10d as c10d

    bound = signature.bind(*args, **keywords)
    backend = str(bound.arguments.get("backend") or c10d.get_backend())
    decision = limits.decide_subgroup(
        _seconds(bound.arguments.get("timeout")),
        limits.torch_default(c10d, backend),
        settings.current().timeout,
    )
    if decision.collectives is not None:
        bound.arguments["timeout"] = datetime.timedelta(seconds=decision.collectives)
    ranks = bound.arguments.get("ranks")
    name = "ranks %s" % list(ranks)[:16] if ranks is not None else "all ranks"
    limits.record_group(name, backend, decision)
    return bound


class _Beginning:
    """One call of ``init_process_group``: what to pass on, and what to do before and after."""

    def __init__(self, signature: inspect.Signature, args: Any, keywords: Any) -> None:
        import torch.distributed.distributed_c10d as c10d

        self._c10d = c10d
        self.bound = signature.bind(*args, **keywords)
        given = self.bound.arguments
        self._backend = str(given.get("backend") or "")
        self.decision = limits.decide(
            _seconds(given.get("timeout")),
            limits.torch_default(c10d, self._backend),
            settings.current().timeout,
        )
        self._rank = _whole(given.get("rank"), os.environ.get("RANK"))
        self._world_size = _whole(given.get("world_size"), os.environ.get("WORLD_SIZE"))
        self._address = job.address_of(given.get("init_method"), given.get("store"), os.environ)
        self._meeting: Optional[job.Meeting] = None
        if self.decision.collectives is not None and not hasattr(c10d, "_set_pg_timeout"):
            self._part_the_limits()

    def _part_the_limits(self) -> None:
        """Before torch 2.2 a group's limit cannot be changed later: make the store, with its own, first."""
        import torch.distributed as dist

        given = self.bound.arguments
        assert self.decision.collectives is not None
        if given.get("store") is None:
            meeting = datetime.timedelta(seconds=self.decision.caller)
            store, rank, world_size = next(
                dist.rendezvous(
                    given.get("init_method") or "env://",
                    given.get("rank", -1),
                    given.get("world_size", -1),
                    timeout=meeting,
                )
            )
            store.set_timeout(meeting)
            given.pop("init_method", None)
            given.update(store=dist.PrefixStore("default_pg", store), rank=rank, world_size=world_size)
        given["timeout"] = datetime.timedelta(seconds=self.decision.collectives)

    @contextlib.contextmanager
    def meeting(self) -> Iterator[None]:
        """While the ranks come together: says who is missing. Never raises of its own accord."""
        if self._address is not None and self._rank is not None and (self._world_size or 0) > 1:
            self._meeting = ledger.attempt(ID, self._meet, None)
        try:
            yield
        except BaseException:
            if self._meeting is not None:
                self._meeting.give_up()
            raise

    def _meet(self) -> job.Meeting:
        assert self._address is not None and self._rank is not None and self._world_size is not None
        return job.Meeting(self._address, self._rank, self._world_size)

    def group_exists(self) -> None:
        """Raise the limit, publish the record, begin the job."""
        if self.decision.collectives is not None:
            longer = datetime.timedelta(seconds=self.decision.collectives)
            if hasattr(self._c10d, "_set_pg_timeout"):
                self._c10d._set_pg_timeout(longer)
            # NCCL fetches its ids from the store at the first collective, which may be late.
            self._c10d._get_default_store().set_timeout(longer)
        limits.record_group("default", self._c10d.get_backend(), self.decision)
        if self._meeting is None:
            return
        begun = self._meeting.joined(self._c10d._get_default_store())
        if begun is None:
            return
        closing.at_end(
            "the connection to the store", lambda: begun.close(settings.current().exit_timeout / 2)
        )
        begun.publish(_record(begun))
        job.set_current(begun)
        if begun.rank == 0:
            start_line.Announcer(begun).start()
        begun.channel.every(2.0, _Republisher(begun).look)


class _Republisher:
    """Publishes the record again when the ledger of this process has changed."""

    def __init__(self, running: job.Job) -> None:
        self._running = running
        self._revision = ledger.revision()

    def look(self, _: Any) -> None:
        """Called by the channel's thread."""
        if ledger.revision() != self._revision:
            self._revision = ledger.revision()
            self._running.publish(_record(self._running))


def _record(running: job.Job) -> records.Record:
    rows = [row.as_dict() for row in ledger.rows()]
    return records.build(running.rank, running.world_size, _packages(), rows)


def _packages() -> Dict[str, str]:
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in _FRAMEWORKS}
    return {name: str(version) for name, version in loaded.items() if version is not None}


def _seconds(timeout: Any) -> Optional[float]:
    return timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else None


def _whole(given: Any, variable: Optional[str]) -> Optional[int]:
    if isinstance(given, int) and given >= 0:
        return given
    return int(variable) if variable and variable.isdigit() else None
