"""An exception out of the program's own signal handler is the program's, also in the middle of our code."""

from __future__ import annotations

import functools
import signal
import sys
import time

import pytest

from ddp_patches import handlers
from ddp_patches.engine import ledger

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs setitimer")


def give_up(number, frame):
    raise ValueError("the user's")


class Handler:
    def __call__(self, number, frame):
        give_up(number, frame)

    def method(self, number, frame):
        give_up(number, frame)


@pytest.fixture(
    params=[give_up, functools.partial(give_up), Handler(), Handler().method],
    ids=["function", "partial", "object", "method"],
)
def interrupted(request):
    """A signal comes shortly."""
    before = signal.signal(signal.SIGALRM, request.param)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_failure_of_ours_is_none_of_a_handlers(interrupted):
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert ledger.attempt("a.patch", lambda: 1 // 0, "otherwise") == "otherwise"


def test_what_a_handler_raises_passes(interrupted):
    with pytest.raises(ValueError, match="the user's") as caught:
        ledger.attempt("a.patch", lambda: time.sleep(10), None)
    assert handlers.has_raised(caught.value)
