"""Which rank of a launch failed first, and of what, for the process that has launched them.

A rank writes down its exception as it happens (see ``failures``); the launcher knows the exit codes, also
of ranks that had no time to write anything. Torch's own report orders by whole seconds, and within a second
the peers of a failed rank have failed as well, in their next collective.
"""

from __future__ import annotations

import signal
import traceback
from typing import Any, Dict, List, NamedTuple, Optional

from .. import console
from . import failure_folder, failures, launched

_LONGEST_TEXT = 20000  # characters of a traceback; its end is kept
_LAUNCHER = "launcher-failed"

# The launcher ends the other ranks with the first of these. SIGABRT is how a backend gives up on its peers.
_CONSEQUENCES = (signal.SIGTERM, signal.SIGABRT, signal.SIGINT)


class Ended(NamedTuple):
    """``exit_code`` as subprocess has it, None if unknown; ``traceback`` empty where nothing was written."""

    rank: int
    pid: int
    exit_code: Optional[int]
    time: Optional[float]
    host: str = ""
    summary: str = ""
    traceback: str = ""


def write_launcher(folder: str, error: BaseException) -> None:
    """Write down how a launcher ended: the ranks' exit codes, or its own error. Raises OSError."""
    failed = getattr(error, "failures", None)
    ranks = {}
    if isinstance(failed, dict):
        ranks = {str(rank): [failure.pid, failure.exitcode] for rank, failure in failed.items()}
    text = "" if ranks else "".join(traceback.format_exception_only(type(error), error))[-_LONGEST_TEXT:]
    launched.write(folder, _LAUNCHER, {"ranks": ranks, "error": text})


def read(folder: str) -> List[Ended]:
    """How the ranks of the launch with that folder have ended, as far as they failed, in no order."""
    codes: Dict[str, Any] = (launched.read(folder, _LAUNCHER) or {}).get("ranks", {})
    found: Dict[int, Ended] = {
        int(rank): Ended(int(rank), pid, code, None) for rank, (pid, code) in codes.items()
    }
    for told in map(failures.parse, failure_folder.all_of_launch(folder)):
        if told is not None:
            code = found[told.rank].exit_code if told.rank in found else None
            found[told.rank] = Ended(
                told.rank, told.pid, code, told.time, told.host, told.summary(), told.trace
            )
    return list(found.values())


def has_failed(folder: str) -> bool:
    """Whether the launcher has failed; a rank may raise, and its program go on to a good end."""
    return launched.read(folder, _LAUNCHER) is not None


def launchers_error(folder: str) -> str:
    """The launcher's own error, where it failed without any rank; else empty."""
    return str((launched.read(folder, _LAUNCHER) or {}).get("error", "")).strip()


def first(ended: List[Ended]) -> Optional[Ended]:
    """The failure that the others follow from.

    A rank that a signal has ended, other than by the launcher or by itself, could not write anything, and
    its peers fail within milliseconds: it goes first. Then the earliest exception; then an exit without one.
    """
    return min(ended, key=_order) if ended else None


def _order(failure: Ended) -> Any:
    code = failure.exit_code or 0
    if code < 0 and failure.time is None and -code not in _CONSEQUENCES:
        return 0, 0.0, failure.rank
    if failure.time is not None:
        return 1, failure.time, failure.rank
    return (2 if code > 0 else 3), 0.0, failure.rank


def text(ended: List[Ended], launchers: str = "", memory_kills: int = 0) -> str:
    """What an exception says of the ranks; empty if nothing is known.

    Args:
        launchers: the launcher's own error, for the case that no rank has failed.
        memory_kills: processes that the kernel has ended for lack of memory during the launch.
    """
    root = first(ended)
    if root is None:
        return "The launcher itself failed: %s" % launchers if launchers else ""
    parts = ["Rank %d%s failed first%s." % (root.rank, _place(root), _how(root.exit_code))]
    parts += _explanation(root, len(ended), memory_kills)
    if root.traceback:
        parts.append("Its own traceback:\n%s" % root.traceback.rstrip())
    elif (root.exit_code or 0) >= 0:
        parts.append("It has left no exception; what it printed is above.")
    others = sorted(each for each in ended if each is not root)
    if others:
        parts.append("After it: %s." % ", ".join("rank %d%s" % (f.rank, _how(f.exit_code)) for f in others))
    return console.printable("\n".join(parts))


def _place(failure: Ended) -> str:
    return " (%s)" % ", ".join(filter(None, [failure.host, "pid %d" % failure.pid]))


def _how(exit_code: Optional[int]) -> str:
    if exit_code is None:
        return ""
    if exit_code >= 0:
        return ", with exit code %d" % exit_code
    try:
        name = " (%s)" % signal.Signals(-exit_code).name
    except ValueError:
        name = ""
    return ", ended by signal %d%s" % (-exit_code, name)


def _explanation(root: Ended, ranks: int, memory_kills: int) -> List[str]:
    if root.exit_code != -signal.SIGKILL:
        return []
    lines = ["Exit code -9: somebody has killed it from outside, so it could not say anything itself."]
    if memory_kills > 0:
        lines.append(
            "The kernel has ended %d process(es) of this machine for lack of memory since the launch: "
            "host memory, not the GPU's." % memory_kills
        )
    else:
        lines.append("Nearly always the machine or its container ran out of host memory (not the GPU's).")
    lines.append(
        "Every rank has its own loader workers and its own cache: fewer of them (workers=), cache=False or "
        "cache='disk' need less. `dmesg` or the batch system say who was killed."
    )
    return lines
