"""Lines for people: through the standard ``ddp_patches`` logger, to stderr, readable among progress bars."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time

from . import _finder, settings

LOGGER_NAME = "ddp_patches"


def who() -> str:
    """``rank 3, host, pid 4711``, or without the rank outside a job."""
    rank = os.environ.get("RANK", "")
    parts = ["rank %s" % rank] if rank not in ("", "-1") else []
    return ", ".join(parts + [socket.gethostname(), "pid %d" % os.getpid()])


def printable(text: str) -> str:
    """``text`` without control characters: what came from a peer must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            # A progress bar leaves the cursor inside its line; a rank of a job nearly always has one.
            start = "\n" if os.environ.get("RANK", "") not in ("", "-1") else ""
            clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
            text = printable(record.getMessage())
            sys.stderr.write("%sddp_patches %s [%s] %s\n" % (start, clock, who(), text))
            sys.stderr.flush()
        except Exception:  # a closed or full stderr must not end a training
            pass


def logger() -> logging.Logger:
    """The ``ddp_patches`` logger, with our handler unless the user gave it one of his own."""
    log = logging.getLogger(LOGGER_NAME)
    if not log.handlers:
        log.addHandler(_Handler())
        log.propagate = False  # or a configured root logger would print each line again
    log.setLevel(settings.current().log_level.upper())
    return log


def say(text: str) -> None:
    """An ordinary line."""
    logger().info("%s", text)


def warn(text: str) -> None:
    """A line about something that the user should look at."""
    logger().warning("%s", text)


def warn_once(text: str) -> None:
    """A warning that every rank and every child process would repeat: once per job, from rank 0."""
    if _finder.is_first_to_say(text):
        warn(text)
