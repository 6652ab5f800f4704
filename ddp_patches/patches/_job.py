"""What patches share that act together with the other ranks of the job."""

from __future__ import annotations

from typing import Optional

from .. import settings
from ..engine import catalogue

_NEEDED = "torch.process_group_timeout"  # where the job begins


def obstacle() -> Optional[str]:
    """Why there will be no job to act in, None if there will be one."""
    if catalogue.is_skipped(_NEEDED, settings.current().skip):
        return "it needs %s, which the setting skip names" % _NEEDED
    return None
