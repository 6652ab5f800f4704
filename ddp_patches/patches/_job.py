"""What patches share that act together with the other ranks of the job."""

from __future__ import annotations

import os
from typing import Optional

from .. import settings
from ..engine import catalogue, versions
from ..runtime import blocking_wait  # at once: it looks at what the process was started with

_NEEDED = "torch.process_group_timeout"  # where the job begins


def obstacle() -> Optional[str]:
    """Why there will be no job to act in, None if there will be one."""
    if catalogue.is_skipped(_NEEDED, settings.current().skip):
        return "it needs %s, which the setting skip names" % _NEEDED
    return None


def settle_blocking_wait() -> None:
    """For the moment before a group is made. torch 2.2 has spelled the variables anew."""
    blocking_wait.settle(os.environ, versions.within(versions.imported_version("torch"), ">=2.2"))
