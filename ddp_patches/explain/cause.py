"""The form of what is known of a cause, and the help that several of them share.

``PATCH`` names an id of ``patches.md``, ``SETTING`` a field of the settings, ``COMMAND`` a command of
``ddp-patches``.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

PATCH, SETTING, COMMAND = "patch", "setting", "command"


class Help(NamedTuple):
    """``what``: PATCH, SETTING or COMMAND; ``how``: what it does about it."""

    what: str
    name: str
    how: str


class Cause(NamedTuple):
    """``title``: the kind in a few words, as they follow "Rank 3 failed first: "."""

    title: str
    meaning: str
    advice: Tuple[str, ...] = ()
    help: Tuple[Help, ...] = ()


MONITOR = Help(
    SETTING,
    "stall_after",
    "a run with ddp_patches says which rank is missing, at which line, after this time",
)
TIMEOUT = Help(SETTING, "timeout", "the floor for the limit of all collectives")
FLOOR = Help(PATCH, "torch.process_group_timeout", "sets that limit without an edit, also in spawned workers")
ZERO_FIRST = Help(PATCH, "ultralytics.zero_first", "ranks wait without a time-out for a leader that is alive")
RESAMPLE = (
    Help(
        PATCH,
        "mmdet.resample",
        "bounded drawing of another sample, and which transform dropped them (mmdet 2.x)",
    ),
    Help(PATCH, "mmengine.resample", "the same for mmdet 3.x and everything on mmengine"),
    Help(PATCH, "mmdet3d.resample", "the same for mmdet3d before 1.1 and its forks, StreamPETR among them"),
)
COLLECT = (
    Help(
        PATCH,
        "mmengine.collect_results",
        "a temporary folder that the ranks do not share fails at once, with a reason",
    ),
    Help(PATCH, "mmdet.collect_results", "the same for mmdet 2.x"),
)
