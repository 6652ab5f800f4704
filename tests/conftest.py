"""Fixtures of all tests."""

from __future__ import annotations

import pytest

from support.processes import Processes


@pytest.fixture
def processes(tmp_path):
    """Starts commands; whatever still runs when the test is over is ended."""
    starter = Processes(tmp_path)
    yield starter
    starter.end()
