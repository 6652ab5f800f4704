"""Who wrote a line: the prefixes of torch, torchrun, srun and mpirun, and the names of log files."""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Optional

from .events import whole

# torchrun's --tee: role and local rank; torch 2.3 and newer: the global rank.
_BRACKET = re.compile(r"\[(?P<role>[A-Za-z_]{1,40})(?P<number>\d{1,6})\]:\s?")
_MPI = re.compile(r"\[\d{1,6},(?P<number>\d{1,6})\]<std(?:out|err)>:")
_SRUN = re.compile(r"\s{0,6}(?P<number>\d{1,5}): ")  # srun --label
_HOST = re.compile(r"(?P<host>[A-Za-z][\w.-]{0,63}): (?=\[(?:rank|default|trainer)\d)")
_TIME = re.compile(r"\[?\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:?\d\d)?\]? ")  # Docker and Kubernetes
_STARTS = frozenset("[ 0123456789")

# C++: "[E602 11:17:52.557891708 ...", Python: "2024-06-02 11:17:52,557", the launcher: "W0602 11:17:52.5".
_CLOCK = re.compile(r"(?<![\d:])(\d\d):(\d\d):(\d\d(?:[.,]\d{1,9})?)")
_CLOCK_WINDOW = 200  # characters

_FILE_RANK = re.compile(r"(?:^|[^a-z])(?:rank|task|proc)[_.-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_FILE_LOCAL_RANK = re.compile(r"/attempt_\d+/(\d{1,6})/")
_LOCAL_RANK = re.compile(r"--local[_-]rank=(\d{1,6})")
_INSIDE = re.compile(r"\[rank(\d{1,6})\]:")


class Line(NamedTuple):
    """``text`` without prefixes; ``stream``: a key under which lines of one process can be put together."""

    text: str
    stream: str = ""
    rank: Optional[int] = None
    local_rank: Optional[int] = None
    task: Optional[int] = None  # srun's number: a rank where each task is one process


def split(text: str) -> Line:
    """Take the prefixes off; those of several programs may be piled up."""
    stream, rank, local_rank, task = "", None, None, None
    for _ in range(4):
        if text[:1] not in _STARTS and ": [" not in text[:70]:
            break
        found = _MPI.match(text) or _BRACKET.match(text) or _SRUN.match(text) or _HOST.match(text)
        found = found or _TIME.match(text)
        if found is None:
            break
        groups = found.groupdict()
        number = whole(groups.get("number"))
        if found.re is _MPI or groups.get("role") == "rank":
            rank = number
        elif found.re is _BRACKET:
            local_rank = number
        elif found.re is _SRUN:
            task = number
        if found.re is not _TIME:
            stream += found.group()
        text = text[found.end() :]
    return Line(text, stream, rank, local_rank, task)


def rank_within(text: str, end: int) -> Optional[int]:
    """The rank of the last ``[rankN]:`` before position ``end``: a progress bar's line has it inside."""
    found = None
    for found in _INSIDE.finditer(text, max(0, end - 300), end):  # noqa: B007
        pass
    return whole(found[1]) if found else None


def local_rank_in_command(text: str, end: int) -> Optional[str]:
    """The last ``--local_rank=N`` before position ``end``: that launcher tells no more."""
    found = None
    for found in _LOCAL_RANK.finditer(text, 0, end):  # noqa: B007
        pass
    return found[1] if found else None


def clock(text: str, position: int = 0) -> Optional[float]:
    """Seconds since midnight of the last time of day shortly before ``position``."""
    found = None
    for found in _CLOCK.finditer(text, max(0, position - _CLOCK_WINDOW), position or _CLOCK_WINDOW):  # noqa: B007
        pass
    if found is None:
        return None
    return int(found[1]) * 3600.0 + int(found[2]) * 60.0 + float(found[3].replace(",", "."))


def rank_of_file(path: str) -> Optional[int]:
    """The global rank in the name of a file such as ``rank3.log``."""
    found = _FILE_RANK.search(os.path.basename(path))
    return whole(found[1]) if found else None


def local_rank_of_file(path: str) -> Optional[int]:
    """The local rank in torchrun's log folders: ``.../attempt_0/1/stderr.log``."""
    found = _FILE_LOCAL_RANK.search(path.replace(os.sep, "/"))
    return whole(found[1]) if found else None
