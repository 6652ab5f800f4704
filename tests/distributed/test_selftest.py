"""``ddp-patches selftest``: what a new user starts first."""

from __future__ import annotations

import json
import sys

from support import environment


def _selftest(processes, tmp_path, **variables):
    clean = environment.clean(tmp_path, **variables)
    command = [sys.executable, "-m", "ddp_patches", "selftest", "--json"]
    return processes.run(command, clean, limit=180)


def test_all_steps_work_here(processes, tmp_path):
    """Promise 8 and the zero_first protocol, as the installed package shows them to a user."""
    result = _selftest(processes, tmp_path)
    found = json.loads(result.stdout)
    assert found["works"], found
    assert [step["works"] for step in found["steps"]] == [True] * 6
    (stall,) = [step["seen"] for step in found["steps"] if step["name"].startswith("a stall")]
    assert "Rank 1 is missing. Rank 0 waits for it in all_reduce" in stall and "in _stall" in stall
    assert result.returncode == 0


def test_it_says_so_when_the_switch_is_off(processes, tmp_path):
    """A self-test that cannot fail would be worth nothing."""
    result = _selftest(processes, tmp_path, DDP_PATCHES="0")
    found = json.loads(result.stdout)
    assert not found["works"]
    assert "DDP_PATCHES=0" in found["steps"][0]["seen"]
    assert result.returncode == 1
