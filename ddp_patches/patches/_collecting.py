"""What OpenMMLab's ``collect_results_cpu`` needs before it begins: a folder that all ranks see.

Upstream's function writes one file for each rank, waits in a barrier, and rank 0 reads them all. Where the
folder is not shared, a rank fails before the barrier (the others wait in it), or rank 0 fails after it
(the others wait in the next collective). So the folder is tried out first, and all ranks fail together.
"""

from __future__ import annotations

import inspect
import os
from typing import Any, Callable, Optional

from ..engine import ledger
from ..runtime import job, limits, shared_folder

PARAMETERS = ("result_part", "size", "tmpdir")
_DEFAULT_FOLDER = ".dist_test"  # upstream's, in the working directory


def replacement_of(patch_id: str, original: Callable[..., Any], advice: str) -> Callable[..., Any]:
    """The function that checks and then hands over; ``advice``: what to set, one sentence."""

    signature = inspect.signature(original)

    def problem_of(arguments: Any, keywords: Any) -> Optional[str]:
        given = signature.bind(*arguments, **keywords).arguments
        if given.keys() - set(PARAMETERS):  # no release known has more: a group of some ranks, say
            return None
        return _problem(patch_id, given.get("tmpdir"), advice)

    def replacement(*arguments: Any, **keywords: Any) -> Any:
        problem = ledger.attempt(patch_id, lambda: problem_of(arguments, keywords), None)
        if problem is not None:
            raise shared_folder.FolderNotShared(problem)
        return original(*arguments, **keywords)

    return replacement


def _problem(patch_id: str, tmpdir: Optional[str], advice: str) -> Optional[str]:
    running = job.current()
    if running is None or running.world_size < 2:
        return None
    if running.obstacle(patch_id, patience=limits.own_limit()) is not None:
        return None
    name = "%s/%d" % (patch_id, shared_folder.next_number(running, patch_id))
    folder = _DEFAULT_FOLDER if tmpdir is None else tmpdir

    def prepare() -> None:
        # A folder that was not named is made by rank 0 alone.
        if tmpdir is not None or running.rank == 0:
            os.makedirs(os.path.expanduser(folder), exist_ok=True)

    return shared_folder.Check(running, name, folder, advice).result(prepare)
