"""``ultralytics.utils.torch_utils.torch_distributed_zero_first``: rank-0-first blocks without a time-out.

Why: rank 0 scans the labels of a large data set inside this block while the other ranks wait in a
barrier, and the scan outlives the barrier's limit. If rank 0 raises there, the others wait for the
whole limit and never learn why. No release has try/finally.

How: upstream's context manager still makes the real barrier; ours only sees to it that no rank
enters it before all others have come to it. Before a process group exists (Ultralytics calls it
while it is being imported), for a world of one and for ``-1`` it is upstream's alone.

Upstream: https://github.com/ultralytics/ultralytics/issues/1439
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Optional

from ... import settings
from ...engine import catalogue, ledger
from ...engine.patch import patch
from ...runtime import job, limits, zero_first

ID = "ultralytics.zero_first"
_NEEDED = "torch.process_group_timeout"  # where the job begins


def _obstacle() -> Optional[str]:
    if catalogue.is_skipped(_NEEDED, settings.current().skip):
        return "it needs %s, which the setting skip names" % _NEEDED
    return None


PATCH = patch(
    ID,
    package="ultralytics",
    summary="ranks wait for a slow leader without a time-out, and raise with its reason if it fails",
    why="rank 0's label scan outlives the group's limit; its exception leaves the others waiting",
    upstream="https://github.com/ultralytics/ultralytics/issues/1439",
    since="0.1.0",
    remove_when="upstream waits for rank 0 by something else than a collective",
    tested=("8.0.132", "8.4.190"),
    condition=_obstacle,
)


@PATCH.replaces(
    "ultralytics.utils.torch_utils|ultralytics.yolo.utils.torch_utils:torch_distributed_zero_first",
    parameters=("local_rank",),
)
def torch_distributed_zero_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """The argument is the global rank in releases up to about 8.2.70, the local rank in later ones."""

    @contextlib.contextmanager
    def replacement(local_rank: int) -> Iterator[None]:
        barriers = ledger.attempt(ID, lambda: _barriers(local_rank), None)
        if barriers is None:
            with original(local_rank):
                yield
        elif local_rank != 0:
            _meet(barriers.meet, barriers)
            with original(local_rank):
                yield
        else:
            with original(local_rank):
                ledger.attempt(ID, barriers.lead, None)
                try:
                    yield
                except BaseException as error:
                    reason = error  # "error" is unbound when the lambda could still see it
                    ledger.attempt(ID, lambda: barriers.failed(reason), None)
                    raise
                _meet(barriers.done, barriers)

    return replacement


def _barriers(local_rank: int) -> Optional[zero_first.Barriers]:
    """The job's counter of barriers, None where this call is upstream's alone."""
    running = job.current()
    if running is None or running.world_size < 2 or local_rank == -1:
        return None
    if running.obstacle(ID, patience=limits.own_limit()) is not None:
        return None
    return zero_first.barriers_of(running, ID)


def _meet(come: Callable[[], None], barriers: zero_first.Barriers) -> None:
    """Wait for the others. The errors that are meant for the user pass; after a defect of ours, upstream."""
    try:
        come()
    except (zero_first.LeaderFailed, zero_first.LeaderTooSlow):
        raise
    except Exception as error:
        ledger.note_failure(ID, error)
        barriers.leave()
        if settings.current().strict:
            raise
