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

import datetime
import inspect
import os
import warnings
from typing import Any, Callable, Dict, Optional, Tuple

from ... import settings
from ...engine import ledger, versions
from ...engine.patch import patch
from ...runtime import (
    closing,
    failures,
    job,
    limits,
    meeting,
    records,
    start_line,
)
from ...runtime.stall import monitor, rounds, worker_stacks
from .._job import settle_blocking_wait

ID = "torch.process_group_timeout"
_LOOK_SECONDS = 2.0  # how often a rank looks whether its record has changed
_FRAMEWORKS = ("torch", "ultralytics", "yolov5", "mmengine", "mmcv", "mmdet", "mmdet3d")

_USUAL_RANKS_PER_NODE = 8  # srun does not say; only how often the store is asked depends on it

PATCH = patch(
    ID,
    package="torch",
    summary="a floor for the time limit of collectives; says who is missing at the start; the start line",
    why="a rank-0-only phase outlives the process group's limit of 10 or 30 minutes",
    upstream="https://github.com/open-mmlab/mmengine/issues/873",
    since="0.1.0",
    remove_when="a rank that is late no longer ends the job at the limit that the program has passed",
    tested=("1.12.1", "1.13.1", "2.0.1", "2.9.1", "2.13.0", "2.14.1"),
)


@PATCH.replaces(
    "torch.distributed.distributed_c10d:init_process_group",
    parameters=("backend", "init_method", "timeout", "world_size", "rank", "store"),
    by_name=True,
)
def init_process_group(original: Callable[..., Any]) -> Callable[..., Any]:
    """Same arguments and result as upstream's, in every torch release."""
    signature = inspect.signature(original)
    worker_stacks.prepare_child()

    def replacement(*args: Any, **keywords: Any) -> Any:
        ledger.attempt(ID, settle_blocking_wait, None)
        beginning = ledger.attempt(ID, lambda: _Beginning(signature, args, keywords), None)
        if beginning is None:
            return original(*args, **keywords)
        try:
            beginning.meet()
            result = original(*beginning.bound.args, **beginning.bound.kwargs)
        except BaseException as error:
            beginning.give_up(error)
            raise
        ledger.attempt(ID, beginning.raise_limit, None)
        ledger.attempt(ID, beginning.begin_job, None)
        return result

    return replacement


@PATCH.replaces(
    "torch.distributed.distributed_c10d:new_group", parameters=("timeout", "backend"), by_name=True
)
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
        self._address = meeting.address_of(given.get("init_method"), given.get("store"), os.environ)
        self._meeting: Optional[meeting.Meeting] = None
        self._can_change_limit = hasattr(c10d, "_set_pg_timeout")  # since torch 2.2
        self._own_store = given.get("store") is None

    def meet(self) -> None:
        """The ranks are coming together. Raises only what upstream raises when they do not."""
        if self._c10d.is_initialized():
            return  # upstream will say so
        if self._address is not None and self._rank is not None and (self._world_size or 0) > 1:
            self._meeting = ledger.attempt(ID, self._announce, None)
        if self.decision.collectives is not None and not self._can_change_limit:
            self._part_the_limits(self.decision.collectives)

    def _announce(self) -> meeting.Meeting:
        assert self._address is not None and self._rank is not None and self._world_size is not None
        return meeting.Meeting(self._address, self._rank, self._world_size)

    def _part_the_limits(self, collectives: float) -> None:
        """Make the store, with the limit of the meeting, and leave the longer one to the group."""
        import torch.distributed as dist

        given = self.bound.arguments
        if self._own_store:
            limit = datetime.timedelta(seconds=self.decision.caller)
            store, rank, world_size = next(
                dist.rendezvous(
                    given.get("init_method") or "env://",
                    given.get("rank", -1),
                    given.get("world_size", -1),
                    timeout=limit,
                )
            )
            store.set_timeout(limit)
            given.pop("init_method", None)
            given.update(store=dist.PrefixStore("default_pg", store), rank=rank, world_size=world_size)
        given["timeout"] = datetime.timedelta(seconds=collectives)

    def give_up(self, error: BaseException) -> None:
        """The group was not made."""
        if self._meeting is None:
            return
        end = self._meeting.failed if isinstance(error, Exception) else self._meeting.over
        ledger.attempt(ID, end, None)

    def raise_limit(self) -> None:
        """The limit of the collectives, now that the ranks have met."""
        limits.record_group("default", self._c10d.get_backend(), self.decision)
        if self.decision.collectives is None:
            return
        longer = datetime.timedelta(seconds=self.decision.collectives)
        if self._can_change_limit:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a backend that knows no limit
                self._c10d._set_pg_timeout(longer)
        if self._own_store:
            # NCCL fetches its ids from the store at the first collective, which may be late.
            self._c10d._get_default_store().set_timeout(longer)

    def begin_job(self) -> None:
        """Publish the record, begin the job."""
        if self._meeting is None:
            return
        self._meeting.over()
        begun = self._meeting.job(self._c10d._get_default_store())
        bound = settings.current().exit_timeout / 2
        begun.at_close(
            closing.at_end("the connection to the store", lambda: begun.close(bound, at_exit=True))
        )
        publisher = _Publisher(begun)
        publisher.publish()
        if begun.rank == 0:
            start_line.Announcer(begun).start()
        begun.channel.every(_LOOK_SECONDS, publisher.look)
        job.set_current(begun)
        failures.install()
        if settings.current().stall_after:
            watching = monitor.Monitor(begun, _local_world_size(begun.world_size))
            watching.start()
            begun.before_close(watching.leave, watching.stop)
        else:
            begun.before_close(lambda client: rounds.leave(client, begun.rank, None))


class _Publisher:
    """Publishes this rank's record, and again when the ledger or the groups of this process have changed."""

    def __init__(self, begun: job.Job) -> None:
        self._job = begun
        self._device = records.current_device()
        self._revision = _revision()

    def publish(self) -> None:
        """Build the record and hand it to the channel."""
        rows = [row.as_dict() for row in ledger.rows()]
        begun = self._job
        begun.publish(records.build(begun.rank, begun.world_size, _packages(), rows, self._device))

    def look(self, _: Any) -> None:
        """Called by the channel's thread."""
        revision = _revision()
        if revision != self._revision:
            self._revision = revision
            self.publish()


def _local_world_size(world_size: int) -> int:
    given = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(given) if given.isdigit() else min(world_size, _USUAL_RANKS_PER_NODE)


def _revision() -> Tuple[int, int]:
    return ledger.revision(), limits.revision()


def _packages() -> Dict[str, str]:
    loaded = {name: versions.imported_version(name) for name in _FRAMEWORKS}
    return {name: version for name, version in loaded.items() if version is not None}


def _seconds(timeout: Any) -> Optional[float]:
    return timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else None


def _whole(given: Any, variable: Optional[str]) -> Optional[int]:
    if isinstance(given, int) and given >= 0:
        return given
    return int(variable) if variable and variable.isdigit() else None
