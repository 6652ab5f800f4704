"""What the demo shows of a run, and what it concludes. No processes here, so that it can be tested."""

from __future__ import annotations

import re
from typing import Any, Mapping, NamedTuple, Optional, Sequence

RANKS = 2
CURE = "ultralytics.zero_first"  # the patch that the second run owes its life to

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SCANNED = re.compile(r"rank 0 has scanned \d+ images in ([\d.]+) s")
_SCANNING = re.compile(r"train: Scanning .* (\d+)% ")
_EPOCH = re.compile(r"^\s*1/1\s.*: 100%")
_SHOWN = [
    re.compile(pattern)
    for pattern in (
        r"^ddp-patches: ",
        r"^ddp_patches ",
        r"^\[slow disk",
        r"DDP: debug command",
        r"Timed out waiting \d+ms",
        r"Connection closed by peer",
        r"^(\[rank\d\]: )?\w*(Error|Exception)\b",
        r"Sending process \d+ closing signal",
        r"failed \(exitcode",
        r"^Starting training",
        r"epochs completed",
        r"^Validating ",
        r"^\s+all\s+\d+\s+\d+",
    )
]


class Ended(NamedTuple):
    """A run that is over. ``code``: its exit code, None where the demo's own limit ended it."""

    code: Optional[int]
    seconds: float
    output: str


def lines_of(text: str) -> list[str]:
    """The lines of a program's output, without colours; each state of a progress bar is one."""
    lines = [_ESCAPES.sub("", line).rstrip() for line in re.split(r"[\r\n]+", text)]
    return [line for line in lines if line]


def is_shown(line: str) -> bool:
    """Whether the demo shows this line of a run. The rest is Ultralytics' table of arguments and the like."""
    scanning = _SCANNING.search(line)
    if scanning:
        return int(scanning.group(1)) % 20 == 0
    return bool(_EPOCH.search(line)) or any(pattern.search(line) for pattern in _SHOWN)


def shortened(line: str) -> str:
    """A progress bar's line up to its percentage; any other line as it is."""
    scanning = _SCANNING.search(line)
    return line[: scanning.end()].rstrip() if scanning else line


def upstream_message(output: str, limit_s: float) -> str:
    """The line in which torch says that a wait was longer than ``limit_s``, or an empty string."""
    wanted = "Timed out waiting %dms" % round(limit_s * 1000)
    return next((line for line in lines_of(output) if wanted in line), "")


def longest_scan_s(output: str) -> float:
    """How long rank 0's longest scan took, as the stand-in has measured it; 0 where none was finished."""
    return max((float(seconds) for seconds in _SCANNED.findall(output)), default=0.0)


def problem_without(ended: Ended, limit_s: float) -> str:
    """Why the run without ddp_patches does not show what it should, or an empty string."""
    if ended.code is None:
        return "the first run (without ddp_patches) did not die: it still ran after %.0f s" % ended.seconds
    if ended.code == 0:
        return "the first run (without ddp_patches) did not die: it ended with exit code 0"
    if not upstream_message(ended.output, limit_s):
        return "the first run (without ddp_patches) died, but not of the group's limit of %g s" % limit_s
    return ""


def problem_with(
    ended: Ended, limit_s: float, missing_files: Sequence[str], ledger: Mapping[str, Any]
) -> str:
    """Why the run with ddp_patches does not show what it should, or an empty string.

    ``missing_files``: what a training writes and this one has not. ``ledger``: the job's, as
    ``ddp-patches status --json`` prints it.
    """
    run = "the second run (with ddp_patches) "
    if ended.code is None:
        return run + "did not end: it still ran after %.0f s" % ended.seconds
    if ended.code != 0:
        return run + "did not train: it ended with exit code %d" % ended.code
    if missing_files:
        return run + "ended with exit code 0, but did not write " + ", ".join(missing_files)
    if longest_scan_s(ended.output) <= limit_s:
        # Then it proves nothing: upstream would have trained as well.
        return run + "trained, but rank 0's scan did not take longer than the group's limit"
    return _problem_of_ledger(ledger, limit_s)


def _problem_of_ledger(ledger: Mapping[str, Any], limit_s: float) -> str:
    cured = [
        rank.get("rank")
        for rank in ledger.get("ranks", ())
        if any(row["id"] == CURE and row["state"] == "applied" for row in rank.get("patches", ()))
    ]
    if sorted(cured) != list(range(RANKS)):
        return "the second run trained, but %s was applied on ranks %s only" % (CURE, cured)
    limits = [group.get("timeout") for group in ledger.get("limits", {}).get("groups", ())]
    if limits[:1] != [limit_s]:
        return "the second run trained, but its group's limit was not %g s: %s" % (limit_s, limits)
    return ""
