"""What torch's launcher ends, it ends with the loader workers.

Why: the launcher sends SIGTERM to its ranks, which end on the spot, without a word to the processes that they
have started. A loader worker looks for its rank every five seconds, while it waits for work. One that is
stopped, does not come back from a sample or waits until somebody takes its result never looks. Forked workers
have inherited the rank's GPUs: until somebody finds and ends them these are taken.

How: before the launcher ends the ranks, what they have started is written down with pid and start time.
What is left of it when a healthy worker would have noticed is ended. A process of another program (an
upload), or with a session of its own (a logger's service), is left alone.

Upstream: https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/multiprocessing/api.py
"""

from __future__ import annotations

from typing import Any, Callable, List

from ... import console
from ...engine import ledger
from ...engine.patch import patch
from ...runtime import family
from ...runtime.family import LOADER_SECONDS, Process

ID = "torch.loader_workers"

PATCH = patch(
    ID,
    package="torch",
    summary="loader workers that a rank leaves behind end when the launcher has ended the rank",
    why="after a job that was ended, loader workers hold host and GPU memory until somebody kills them",
    upstream="https://github.com/pytorch/pytorch/issues/1085",
    since="0.1.0",
    remove_when="torch's launcher ends what its ranks have started",
    tested=("1.12.1", "1.13.1", "2.0.1", "2.9.1", "2.13.0", "2.14.1"),
)


@PATCH.replaces("torch.distributed.elastic.multiprocessing.api:PContext.close", parameters=("self",))
def close(original: Callable[..., Any]) -> Callable[..., Any]:
    """Same arguments, result and errors as upstream's. At most eight seconds longer."""

    def replacement(self: Any, *args: Any, **keywords: Any) -> Any:
        nothing: List[Process] = []
        started = ledger.attempt(ID, lambda: _started_by_ranks(self), nothing)
        try:
            return original(self, *args, **keywords)
        finally:
            ledger.attempt(ID, lambda: _end(started), None)

    return replacement


def _started_by_ranks(context: Any) -> List[Process]:
    try:
        ranks = context.pids()
    except AssertionError:  # of one that has not started any
        return []
    return family.workers_of(ranks.values())


def _end(started: List[Process]) -> None:
    ended = family.end(started, LOADER_SECONDS)
    if ended:
        console.say(
            "ended what ranks had left behind: %s." % ", ".join("pid %d" % process.pid for process in ended)
        )
