"""One rank of ``ddp-patches selftest``; writes what it sees to the file named in its argument.

A script of its own that is armed from outside, as a user's training is. The block below does what
Ultralytics' does; Ultralytics itself need not be installed.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from typing import Any, Iterator

LIMIT_SECONDS = 10  # of the process group
SLOW_SECONDS = 14  # of rank 0's work, longer than the limit
REASON = "the label file is unreadable (selftest)"
AWAY_SECONDS = 12  # of rank 1, while rank 0 waits for it in a collective
AWAY_LIMIT_SECONDS = 60


def main(path: str) -> None:
    import torch.distributed as dist

    def note(name: str, text: str) -> None:
        with open(path, "a") as file:
            file.write("%s\t%s\n" % (name, " ".join(text.split())))

    note(
        "armed",
        "yes" if hasattr(dist.init_process_group, "__ddp_patches__") else "no: not patched in the child",
    )
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=LIMIT_SECONDS))
    rank = dist.get_rank()
    block = _block(dist)
    try:
        with block(rank):
            if rank == 0:
                time.sleep(SLOW_SECONDS)
        note("slow", "done")
    except Exception as error:
        note("slow", "%s: %s" % (type(error).__name__, error))
    try:
        with block(rank):
            if rank == 0:
                raise ValueError(REASON)
        note("failing", "no error arrived")
    except Exception as error:
        note("failing", "%s: %s" % (type(error).__name__, error))
    _stall(dist, rank)
    note("stall", "done")


def _stall(dist: Any, rank: int) -> None:
    import torch

    group = dist.new_group(timeout=datetime.timedelta(seconds=AWAY_LIMIT_SECONDS))
    if rank == 1:
        time.sleep(AWAY_SECONDS)  # the line that the report has to name
    dist.all_reduce(torch.ones(1), group=group)


def _block(dist: Any) -> Any:
    from ddp_patches.patches.ultralytics import zero_first

    @contextlib.contextmanager
    def upstream(local_rank: int) -> Iterator[None]:
        if local_rank != 0:
            dist.barrier()
        yield
        if local_rank == 0:
            dist.barrier()

    return zero_first.torch_distributed_zero_first(upstream)


if __name__ == "__main__":
    main(sys.argv[1])
