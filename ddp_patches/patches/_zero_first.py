"""Rank-0-first blocks without a time-out: what the patches of Ultralytics and YOLOv5 share.

Upstream's context manager still makes the real barrier; ours only sees to it that no rank enters it before
all others have come to it. Before a process group exists, for a world of one and for ``-1`` it is upstream's
alone.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Optional

from .. import handlers, settings
from ..engine import ledger
from ..runtime import job, limits, zero_first


def replacement_of(patch_id: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The context manager that takes ``original``'s place; its argument is upstream's ``local_rank``."""

    @contextlib.contextmanager
    def replacement(local_rank: int, *more: Any, **named: Any) -> Iterator[None]:
        barriers = None
        if not (more or named):  # no release known has more arguments: a group of some ranks, say
            barriers = ledger.attempt(patch_id, lambda: _barriers(patch_id, local_rank), None)
        if barriers is None:
            with original(local_rank, *more, **named):
                yield
        elif local_rank != 0:
            _meet(patch_id, barriers.meet, barriers)
            with original(local_rank):
                yield
        else:
            with original(local_rank):
                ledger.attempt(patch_id, barriers.lead, None)
                try:
                    yield
                except BaseException as error:
                    reason = error  # "error" is unbound when the lambda could still see it
                    ledger.attempt(patch_id, lambda: barriers.failed(reason), None)
                    raise
                _meet(patch_id, barriers.done, barriers)

    return replacement


def _barriers(patch_id: str, local_rank: int) -> Optional[zero_first.Barriers]:
    """The job's counter of barriers, None where this call is upstream's alone."""
    running = job.current()
    if running is None or running.world_size < 2 or local_rank == -1:
        return None
    if running.obstacle(patch_id, patience=limits.own_limit()) is not None:
        return None
    return zero_first.barriers_of(running, patch_id)


def _meet(patch_id: str, come: Callable[[], None], barriers: zero_first.Barriers) -> None:
    """Wait for the others. The errors that are meant for the user pass; after a defect of ours, upstream."""
    try:
        come()
    except (zero_first.LeaderFailed, zero_first.LeaderTooSlow):
        raise
    except Exception as error:
        if handlers.has_raised(error):
            raise
        ledger.note_failure(patch_id, error)
        barriers.leave()
        if settings.current().strict:
            raise
