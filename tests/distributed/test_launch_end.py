"""How a launch of Ultralytics ends with torch's own launcher; a stand-in plays Ultralytics.

Guards "Ctrl-C, SIGTERM or death of the parent ends the workers" on each torch that the tests run with.
"""

from __future__ import annotations

import os
import signal

import pytest

from support import launching, ranks

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")

LIMIT_SECONDS = 150


@pytest.mark.upstream_fault("torch.launcher")
@pytest.mark.parametrize("off", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_parent_alone(processes, number, off):
    """Launcher and ranks end; without the patch they live on."""
    running = launching.launch(processes, launching.SLEEP, **(launching.OFF if off else {}))
    launching.both_ranks_begin(running, LIMIT_SECONDS)
    started = running.descendants()
    running.send(number)
    running.popen.wait(LIMIT_SECONDS)
    if off:
        assert len(running.wait(0).leftovers) >= 2
    else:
        assert launching.gone(started), running.wait(0)
        running.wait(0).check(-number)
        assert launching.files_left(processes.folder) == []


def test_a_failing_ranks_own_traceback(processes):
    told = launching.launch(processes, launching.FAILS).wait(LIMIT_SECONDS).check(1).stdout
    assert "failed first, with exit code 1." in told
    assert "KeyError: 'mosaic'" in told


def test_a_killed_rank_is_explained(processes):
    told = launching.launch(processes, launching.KILLED).wait(LIMIT_SECONDS).check(1).stdout
    assert "failed first, ended by signal 9 (SIGKILL)." in told


@pytest.mark.parametrize("off", [False, True])
def test_two_launches_that_have_found_the_same_port(processes, off):
    port, variables = ranks.free_port(), launching.OFF if off else {}
    both = [
        launching.launch(processes, launching.SLEEP, name, port=port, **variables) for name in ("one", "two")
    ]
    if not off:
        for running in both:
            launching.both_ranks_begin(running, LIMIT_SECONDS)
        return
    (loser,) = launching.ended(both, LIMIT_SECONDS)[:1]
    assert "ddress already in use" in loser.wait(0).check(1).stderr


def test_a_closed_terminal_under_nohup(processes):
    """Where torch has no option for it the launch says that it cannot survive."""
    running = launching.launch(processes, "time.sleep(6)", prefix=["nohup"])
    launching.both_ranks_begin(running, LIMIT_SECONDS)
    os.killpg(running.pid, signal.SIGHUP)
    result = running.wait(LIMIT_SECONDS)
    warned = "ends at a closed terminal all the same" in result.stderr
    assert warned is not ("train() returned" in result.stdout), result
