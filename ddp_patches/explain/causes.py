"""What a kind of finding means, what to try, and which patch or setting of ours addresses it: pure text."""

from __future__ import annotations

from typing import Dict

from .cause import COMMAND, PATCH, SETTING, Cause, Help
from .causes_of_ends import ENDS
from .causes_of_waits import WAITS

__all__ = ["CAUSES", "COMMAND", "PATCH", "SETTING", "SIGNALS", "Cause", "Help"]

CAUSES: Dict[str, Cause] = {**WAITS, **ENDS}


# What an exit code of the launcher says: minus the number of the signal.
SIGNALS = {
    1: ("SIGHUP", "terminal closed"),
    2: ("SIGINT", "interrupted"),
    6: ("SIGABRT", "aborted"),
    7: ("SIGBUS", "bus error"),
    9: ("SIGKILL", "host memory"),
    11: ("SIGSEGV", "segmentation fault"),
    15: ("SIGTERM", "cancelled"),
}
