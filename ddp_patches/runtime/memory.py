"""Whether the kernel has killed something for want of memory: on this machine, or in this container."""

from __future__ import annotations

from typing import List, Optional

_FOLDER = "/sys/fs/cgroup"
_GIB = 2.0**30


def killed_phrase() -> str:
    """``; 2 processes of this container were killed for want of memory (limit 16.0 GiB)``, or ``""``."""
    kills = _value(_lines("memory.events"), "oom_kill")
    if not kills:
        return ""
    limit = _limit()
    return "; %d process%s of this container killed for want of memory%s" % (
        kills,
        " was" if kills == 1 else "es were",
        "" if limit is None else " (limit %.1f GiB)" % (limit / _GIB),
    )


def oom_kills() -> Optional[int]:
    """How many processes the kernel has ended for lack of memory, on this machine; None if unknown."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
    except (OSError, ValueError):
        return None


def _limit() -> Optional[int]:
    lines = _lines("memory.max")
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _lines(name: str) -> List[str]:
    """Of a file of the control group (version 2) that a container sees as its own; empty elsewhere."""
    try:
        with open("%s/%s" % (_FOLDER, name)) as file:
            return file.read().splitlines()
    except OSError:
        return []


def _value(lines: List[str], name: str) -> int:
    for line in lines:
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0
