"""Fixtures of all tests."""

from __future__ import annotations

import signal

import pytest

from support.processes import Processes

# A script's `&` starts a program that ignores Ctrl-C, and so does whatever that starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def processes(tmp_path):
    """Starts commands; whatever still runs when the test is over is ended."""
    starter = Processes(tmp_path)
    yield starter
    starter.end()
