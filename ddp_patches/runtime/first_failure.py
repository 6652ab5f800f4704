"""Which rank of a launch failed first, and of what: written by ranks and launcher, read by the parent.

A rank writes its exception as it happens; the launcher knows the exit codes, also of ranks that had no time
to write anything. Torch's own report orders by whole seconds, and within a second the peers of a failed rank
have failed as well, in their next collective.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from .. import console
from . import launched

_LONGEST_TEXT = 20000  # characters of a traceback; its end is kept
_RANK, _LAUNCHER = "failure-", "launcher-failed"

# The launcher ends the other ranks with the first of these. SIGABRT is how a backend gives up on its peers.
_CONSEQUENCES = (signal.SIGTERM, signal.SIGABRT, signal.SIGINT)


class Failure(NamedTuple):
    """``exit_code`` as subprocess has it, None if unknown; ``traceback`` empty where nothing was written."""

    rank: int
    pid: int
    exit_code: Optional[int]
    time: Optional[float]
    host: str = ""
    summary: str = ""
    traceback: str = ""


def write_own(folder: str, error: BaseException) -> None:
    """Write down what ends this rank; the first one counts. Raises OSError."""
    if getattr(error, "code", 1) in (0, None):  # sys.exit() after all went well
        return
    name = "%s%s" % (_RANK, os.environ.get("RANK", "0"))
    if launched.read(folder, name) is not None:
        return
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    content = {
        "rank": int(os.environ.get("RANK", "0")),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "type": type(error).__name__,
        "message": str(error)[:_LONGEST_TEXT],
        "traceback": "".join(lines)[-_LONGEST_TEXT:],
        "time": time.time(),
    }
    launched.write(folder, name, content)


def write_uncaught(folder: str) -> None:
    """Have an uncaught exception of this process written down before it is printed as ever."""
    before = sys.excepthook

    def hook(kind: Any, error: Any, trace: Any) -> None:
        quietly(lambda: write_own(folder, error))
        before(kind, error, trace)

    sys.excepthook = hook


def quietly(step: Callable[[], Any]) -> None:
    """Do ``step``; a process that is failing already must not fail because of us."""
    try:
        step()
    except Exception as error:
        console.logger().debug("a rank's failure cannot be told to the parent: %r", error)


def write_launcher(folder: str, error: BaseException) -> None:
    """Write down how a launcher ended: the ranks' exit codes, or its own error. Raises OSError."""
    failures = getattr(error, "failures", None)
    ranks = {}
    if isinstance(failures, dict):
        ranks = {str(rank): [failure.pid, failure.exitcode] for rank, failure in failures.items()}
    text = "" if ranks else "".join(traceback.format_exception_only(type(error), error))[-_LONGEST_TEXT:]
    launched.write(folder, _LAUNCHER, {"ranks": ranks, "error": text})


def read(folder: str) -> List[Failure]:
    """All failed ranks of the launch with that folder, in no order."""
    codes: Dict[str, Any] = (launched.read(folder, _LAUNCHER) or {}).get("ranks", {})
    found: Dict[int, Failure] = {
        int(rank): Failure(int(rank), pid, code, None) for rank, (pid, code) in codes.items()
    }
    for name in launched.names(folder, _RANK):
        told = launched.read(folder, name)
        if isinstance(told, dict):
            rank = int(told["rank"])
            code = found[rank].exit_code if rank in found else None
            summary = "%s: %s" % (told["type"], told["message"]) if told["message"] else told["type"]
            found[rank] = Failure(
                rank, int(told["pid"]), code, told["time"], told["host"], summary, told["traceback"]
            )
    return list(found.values())


def has_failed(folder: str) -> bool:
    """Whether the launcher has failed; a rank may raise, and its program go on to a good end."""
    return launched.read(folder, _LAUNCHER) is not None


def launchers_error(folder: str) -> str:
    """The launcher's own error, where it failed without any rank; else empty."""
    return str((launched.read(folder, _LAUNCHER) or {}).get("error", "")).strip()


def first(failures: List[Failure]) -> Optional[Failure]:
    """The failure that the others follow from.

    A rank that a signal has ended, other than by the launcher or by itself, could not write anything, and
    its peers fail within milliseconds: it goes first. Then the earliest exception; then an exit without one.
    """
    return min(failures, key=_order) if failures else None


def _order(failure: Failure) -> Any:
    code = failure.exit_code or 0
    if code < 0 and failure.time is None and -code not in _CONSEQUENCES:
        return 0, 0.0, failure.rank
    if failure.time is not None:
        return 1, failure.time, failure.rank
    return (2 if code > 0 else 3), 0.0, failure.rank


def oom_kills() -> Optional[int]:
    """How many processes the kernel has ended for lack of memory, on this machine; None if unknown."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
    except (OSError, ValueError):
        return None


def text(failures: List[Failure], launchers: str = "", memory_kills: int = 0) -> str:
    """What an exception says of the ranks; empty if nothing is known.

    Args:
        launchers: the launcher's own error, for the case that no rank has failed.
        memory_kills: processes that the kernel has ended for lack of memory during the launch.
    """
    root = first(failures)
    if root is None:
        return "The launcher itself failed: %s" % launchers if launchers else ""
    parts = ["Rank %d%s failed first%s." % (root.rank, _place(root), _how(root.exit_code))]
    parts += _explanation(root, len(failures), memory_kills)
    if root.traceback:
        parts.append("Its own traceback:\n%s" % root.traceback.rstrip())
    elif (root.exit_code or 0) >= 0:
        parts.append("It has left no exception; what it printed is above.")
    others = sorted(failure for failure in failures if failure is not root)
    if others:
        parts.append("After it: %s." % ", ".join("rank %d%s" % (f.rank, _how(f.exit_code)) for f in others))
    return console.printable("\n".join(parts))


def _place(failure: Failure) -> str:
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


def _explanation(root: Failure, ranks: int, memory_kills: int) -> List[str]:
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
