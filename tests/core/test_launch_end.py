"""How a launch of Ultralytics ends: real processes, with stand-ins for Ultralytics and for torch's launcher.

The same with real releases: ``tests/live/test_ultralytics_launch_end.py``.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from support import launching, ranks

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")

LIMIT_SECONDS = 60
STANDINS = [launching.RELAUNCH, launching.TORCHS_LAUNCHER]


def launch(processes, rank_does, name="parent", **more):
    return launching.launch(processes, rank_does, name, standins=STANDINS, **more)


def decoy(of):
    """A process of nobody's with the very command line of `of`."""
    with open("/proc/%d/cmdline" % of, encoding="utf-8") as file:
        words = file.read().split("\0")[:-1]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, STANDINS))}
    known = dict(variables, LOCAL_RANK="0", RANK="0", RANK_DOES=launching.SLEEP, YOLO_CONFIG_DIR="/")
    process = subprocess.Popen(words, executable=sys.executable, env=known, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert b"RANK 0 begins" in process.stdout.readline()
    return process


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL]
BY_NAME = pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
# A rank that a signal does not end: SIGINT comes as an exception, the others are ignored.
STUBBORN = """
import signal
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("RANK %d is stubborn" % rank, flush=True)
time.sleep(600)
"""


@BY_NAME
def test_a_signal_to_the_parent_alone_ends_launcher_and_workers(processes, number):
    running = launch(processes, launching.SLEEP)
    pids = launching.both_ranks_begin(running, LIMIT_SECONDS)
    started = running.descendants()
    unrelated = decoy(pids[0])
    try:
        running.send(number)
        running.popen.wait(LIMIT_SECONDS)
        assert launching.gone(started), running.wait(0)
        assert unrelated.poll() is None
    finally:
        unrelated.kill()
        unrelated.communicate()
    # Python itself ends by SIGINT where nobody catches KeyboardInterrupt.
    running.wait(0).check(-number)
    assert launching.files_left(processes.folder) == []


@BY_NAME
def test_without_the_patch_they_live_on(processes, number):
    """Shows that the test above can fail."""
    running = launch(processes, launching.SLEEP, **launching.OFF)
    launching.both_ranks_begin(running, LIMIT_SECONDS)
    running.send(number)
    assert len(running.wait(LIMIT_SECONDS).leftovers) >= 2


@BY_NAME
def test_ranks_that_ignore_every_signal(processes, number):
    running = launch(processes, STUBBORN, DDP_PATCHES_EXIT_TIMEOUT="2s")
    for rank in (0, 1):
        running.wait_for("RANK %d is stubborn" % rank, LIMIT_SECONDS)
    started = running.descendants()
    running.send(number)
    running.popen.wait(LIMIT_SECONDS)
    assert launching.gone(started), running.wait(0)
    running.wait(0).check(-number)
    assert launching.files_left(processes.folder) == []


def test_ranks_end_when_the_launcher_is_killed(processes):
    running = launch(processes, launching.SLEEP)
    pids = launching.both_ranks_begin(running, LIMIT_SECONDS)
    os.kill(launching.parent_of(pids[0]), signal.SIGKILL)
    result = running.wait(LIMIT_SECONDS)
    assert launching.gone(pids)
    assert "CalledProcessError, -9" in result.stdout
    assert launching.files_left(processes.folder) == []


WORKER = """
import subprocess
if rank == 0:
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    print("worker", flush=True)
time.sleep(600)
"""


def test_ranks_end_when_parent_and_launcher_are_killed_together(processes):
    """With their loader workers, for there is nobody else to end these."""
    running = launch(processes, WORKER)
    pids = launching.both_ranks_begin(running, LIMIT_SECONDS)
    running.wait_for("worker", LIMIT_SECONDS)
    launcher = launching.parent_of(pids[0])
    # First stopped, or the launcher might be quicker than we are.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (launcher, running.pid):
            os.kill(pid, number)
    running.popen.wait(LIMIT_SECONDS)
    assert launching.gone(pids), running.wait(0)
    assert running.wait(0).leftovers == []
    assert launching.files_left(processes.folder) == []


def test_a_daemon_that_a_rank_has_started_is_left_alone(processes):
    """A logger's service, which wants to finish its upload after the rank. It has a session of its own."""
    rank_does = """
import subprocess
if rank == 0:
    daemon = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"],
                              start_new_session=True)
    print("daemon %d" % daemon.pid, flush=True)
time.sleep(600)
"""
    running = launch(processes, rank_does)
    launching.both_ranks_begin(running, LIMIT_SECONDS)
    running.wait_for("daemon ", LIMIT_SECONDS)
    (line,) = (line for line in running.stdout().splitlines() if line.startswith("daemon "))
    running.send(signal.SIGINT)
    result = running.wait(LIMIT_SECONDS)
    assert result.leftovers == [int(line.split()[1])]


def test_a_loader_worker_that_never_ends_goes_with_its_rank(processes):
    running = launch(processes, WORKER)
    launching.both_ranks_begin(running, LIMIT_SECONDS)
    running.wait_for("worker", LIMIT_SECONDS)
    running.send(signal.SIGTERM)
    assert running.wait(LIMIT_SECONDS).check(-signal.SIGTERM).leftovers == []


def test_a_parent_that_is_the_first_process_of_a_container(processes):
    """To SIGTERM the system gives no effect there, unless somebody handles it."""
    prefix = ["unshare", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("unshare --pid is not permitted here")
    running = launch(processes, launching.SLEEP, prefix=prefix)
    launching.both_ranks_begin(running, LIMIT_SECONDS)
    (first,) = launching.children_of(running.pid)
    os.kill(first, signal.SIGTERM)
    result = running.wait(LIMIT_SECONDS).check(128 + signal.SIGTERM)
    assert result.leftovers == []
    assert launching.files_left(processes.folder) == []


def test_a_launch_that_goes_well(processes):
    result = launch(processes, "time.sleep(1.5)").wait(LIMIT_SECONDS).check()
    assert "train() returned" in result.stdout
    assert result.stderr == ""
    assert launching.files_left(processes.folder) == []


def test_a_failing_ranks_own_traceback(processes):
    """Its peer fails a moment later, with what such peers say."""
    stdout = launch(processes, launching.FAILS).wait(LIMIT_SECONDS).check(1).stdout
    assert "WorkersFailed, 1: Command '['" in stdout
    assert "Rank 1 (" in stdout
    assert "failed first, with exit code 1." in stdout
    assert "in augment" in stdout
    assert "KeyError: 'mosaic'" in stdout
    assert launching.files_left(processes.folder) == []


def test_a_rank_that_raises_and_ends_well_is_no_failure(processes):
    rank_does = "sys.excepthook = lambda *error: os._exit(0)\nraise KeyError('mosaic')"
    result = launch(processes, rank_does).wait(LIMIT_SECONDS).check()
    assert "train() returned" in result.stdout
    assert "mosaic" not in result.stdout
    assert "with exit code" not in result.stderr, "the parent has nothing to report"


def test_without_the_patch_the_exception_knows_nothing(processes):
    result = launch(processes, "raise KeyError('mosaic')", **launching.OFF).wait(LIMIT_SECONDS).check(1)
    assert "CalledProcessError, 1: Command '['" in result.stdout
    assert "KeyError" not in result.stdout


def test_a_killed_rank_is_explained(processes):
    stdout = launch(processes, launching.KILLED).wait(LIMIT_SECONDS).check(1).stdout
    assert "failed first, ended by signal 9 (SIGKILL)." in stdout
    assert "host memory" in stdout


def test_an_exit_without_an_exception(processes):
    stdout = launch(processes, "os._exit(3) if rank else time.sleep(600)").wait(LIMIT_SECONDS).check(1).stdout
    assert "failed first, with exit code 3." in stdout
    assert "It has left no exception; what it printed is above." in stdout


@pytest.mark.parametrize("off", [False, True])
def test_two_launches_that_have_found_the_same_port(processes, off):
    """Between upstream's look for a free port and the launcher's use of it lie seconds."""
    port = ranks.free_port()
    rank_does = "print('%s has %s' % (os.environ['NAME'], rank), flush=True)\n" + launching.SLEEP
    variables = launching.OFF if off else {}
    one = launch(processes, rank_does, "one", port=port, NAME="one", **variables)
    two = launch(processes, rank_does, "two", port=port, NAME="two", **variables)
    if off:
        loser = launching.ended([one, two], LIMIT_SECONDS)[0]
        assert "Address already in use" in loser.wait(0).check(1).stderr
    else:
        for running in (one, two):
            running.wait_for("%s has 1" % running.name, LIMIT_SECONDS)


def test_a_port_that_somebody_listens_on_is_not_taken(processes):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        running = launch(processes, "pass", port=listener.getsockname()[1])
        running.wait(LIMIT_SECONDS).check()


@pytest.mark.parametrize("off", [False, True])
def test_a_closed_terminal_under_nohup(processes, off):
    """SIGHUP goes to parent and launcher; the parent ignores it, the launcher sets a handler of its own."""
    running = launch(processes, "time.sleep(3)", prefix=["nohup"], **(launching.OFF if off else {}))
    launching.both_ranks_begin(running, LIMIT_SECONDS)
    os.killpg(running.pid, signal.SIGHUP)
    result = running.wait(LIMIT_SECONDS)
    assert ("train() returned" in result.stdout) is not off, result
    assert result.returncode == (1 if off else 0)


def test_files_of_a_launch_that_cannot_be_written(processes):
    """Upstream has made its file before it finds that the trainer cannot be pickled."""
    for name, variables in (("on", {}), ("off", launching.OFF)):
        first = "BaseTrainer.cannot_be_pickled = True"
        running = launch(processes, "pass", name, parent_first=first, **variables)
        assert "cannot pickle it" in running.wait(LIMIT_SECONDS).check(1).stderr
    assert launching.files_left(processes.folder / "on") == []
    assert len(launching.files_left(processes.folder / "off")) == 2


def test_another_copy_of_the_library_is_named(processes):
    """Report 46: the parent's folder has a copy of its own; the workers run a file of another folder."""
    source = launching.RELAUNCH / "ultralytics"
    copy = processes.folder / "parent" / "ultralytics"  # beside the script, which Python puts on the path
    shutil.copytree(str(source), str(copy))
    running = launch(processes, "pass")
    result = running.wait(LIMIT_SECONDS).check()
    (line,) = (line for line in result.stderr.splitlines() if "another copy of Ultralytics" in line)
    assert str(source) in line
    assert str(copy) in line


def test_handlers_of_the_user_are_kept(processes):
    first = """
import signal
def handler(number, frame):
    print("the user's own", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, handler)
"""
    running = launch(processes, launching.SLEEP, parent_first=first)
    launching.both_ranks_begin(running, LIMIT_SECONDS)
    started = running.descendants()
    running.send(signal.SIGTERM)
    assert "the user's own" in running.wait(LIMIT_SECONDS).check(7).stdout
    assert launching.gone(started)
    assert launching.files_left(processes.folder) == []
