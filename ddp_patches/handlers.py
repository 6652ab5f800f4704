"""Exceptions that come out of a signal handler of the program's, in the middle of whatever runs then.

They are the program's own: where they pass through our code they are no failure of ours.
"""

from __future__ import annotations

import signal
from typing import Any, Optional


def has_raised(error: BaseException) -> bool:
    """Whether ``error`` comes from a handler that is installed now."""
    handlers = [
        code for code in map(_code, map(signal.getsignal, signal.valid_signals())) if code is not None
    ]
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code(handler: Any) -> Optional[Any]:
    handler = getattr(handler, "func", handler)  # of a functools.partial
    of_an_object = getattr(type(handler).__call__, "__code__", None) if callable(handler) else None
    return getattr(handler, "__code__", of_an_object)
