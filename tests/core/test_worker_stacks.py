"""A loader worker is asked for its stack by a signal, which kills whoever does not handle it just then."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from ddp_patches.runtime.stall import worker_stacks

pytestmark = pytest.mark.skipif(not worker_stacks.signal_number(), reason="no real-time signals here")

PREPARED = """
    import sys, time
    from ddp_patches.runtime.stall import worker_stacks

    worker_stacks.prepare()

    def works_for_ever():
        print("ready", flush=True)
        while True:
            time.sleep(0.01)

    {then}
    """


def start(then):
    code = textwrap.dedent(PREPARED).format(then=then)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def ended():
    processes = []
    yield processes
    for process in processes:
        with contextlib.suppress(ProcessLookupError):  # all of it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_child_that_has_prepared_itself_says_where_it_is(ended):
    ended.append(start("works_for_ever()"))
    for _ in range(3):
        stack = worker_stacks.of(ended[0].pid)
        assert "works_for_ever" in [function for _, _, function in stack], stack
    assert ended[0].poll() is None


def test_a_child_of_a_child_answers_for_itself(ended):
    """A rank of `mp.spawn` has prepared itself, and forks its loader workers."""
    then = (
        "worker_stacks.prepare_children()\n"
        "import os\n"
        "child = os.fork()\n"
        "if child == 0:\n    works_for_ever()\n"
        "time.sleep(1)\n"
        "print(worker_stacks.of(child), flush=True)\n"
        "os.kill(child, 9)"
    )
    ended.append(start(then))
    assert "works_for_ever" in ended[0].stdout.readline()
    ended[0].wait(30)


def test_a_child_that_has_become_another_program_survives(ended):
    """`exec` takes the handler away and leaves the pid, its parent and its start time."""
    shell = "os.execv('/bin/sh', ['sh', '-c', 'echo ready; exec sleep 60'])"
    ended.append(start("import os; " + shell))
    survives(ended[0])


def test_a_child_that_takes_its_handler_back_survives(ended):
    number = worker_stacks.signal_number()
    then = "import signal; signal.signal(%d, signal.SIG_DFL); works_for_ever()" % number
    ended.append(start(then))
    survives(ended[0])


def test_a_child_that_knows_nothing_of_it_survives(ended):
    ended.append(
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    )
    survives(ended[0])


def test_a_stranger_is_not_asked_though_it_would_answer(ended, tmp_path):
    """As after the end of a worker whose pid has been given to another process."""
    code = textwrap.dedent(PREPARED).format(then="works_for_ever()")
    starter = (
        "import subprocess, sys\n"
        "with open(sys.argv[2], 'w') as out:\n"
        "    print(subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=out).pid)"
    )
    command = [sys.executable, "-c", starter, code, str(tmp_path / "out")]
    stranger = int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    try:
        deadline = time.monotonic() + 30
        while (tmp_path / "out").read_text() != "ready\n":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert worker_stacks.of(stranger) == []
        os.kill(stranger, 0)
    finally:
        os.kill(stranger, signal.SIGKILL)


def survives(process):
    assert worker_stacks.of(process.pid) == []
    time.sleep(0.2)
    assert process.poll() is None, "the signal has killed it"


def test_a_process_that_is_gone():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert worker_stacks.of(gone.pid) == []


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ("SIGRTMIN+12", getattr(signal, "SIGRTMIN", 34) + 12),
        ("sigrtmin", getattr(signal, "SIGRTMIN", 34)),
        ("SIGUSR2", signal.SIGUSR2),
        ("40", 40),
        ("off", 0),
    ],
)
def test_the_signal_is_a_setting(monkeypatch, given, number):
    from ddp_patches import settings

    monkeypatch.setattr(settings, "_active", settings.load({"DDP_PATCHES_STACK_SIGNAL": given}))
    assert worker_stacks.signal_number() == number
    for bad in ("SIGRTMIN+99", "SIGKILL", "9", "SIGSEGV", "banana", "-3"):
        assert settings.load({"DDP_PATCHES_STACK_SIGNAL": bad}).problems
