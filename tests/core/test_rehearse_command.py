"""`ddp-patches rehearse`: when it refuses, and that the command is otherwise the user's own."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from ddp_patches.cli import main, rehearse
from ddp_patches.rehearse import gpus, permit
from support import interpreters

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and exit codes of POSIX")

OURS = [sys.executable, "-m", "ddp_patches", "rehearse"]
HERE = interpreters.plain_environment(PYTHONPATH=str(interpreters.PACKAGE_PARENT))

SHOW = (
    "import json, os; from ddp_patches.rehearse import permit;"
    "print(json.dumps({'obstacle': permit.obstacle(os.environ), **os.environ}))"
)


def start(*arguments, **variables):
    return interpreters.run([*OURS, *arguments], {**HERE, **variables})


# --- when it refuses ------------------------------------------------------------------------------------


class Driver:
    """A stand-in for libcuda: `count` devices, unless starting or counting fails."""

    def __init__(self, count, start_error=0, count_error=0):
        self.cuInit = lambda flags: start_error
        self.cuDeviceGetCount = lambda pointer: self._fill(pointer, count) or count_error

    @staticmethod
    def _fill(pointer, count):
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int)).contents.value = count


def loader(driver):
    def load(name):
        if name == "libcuda.so.1" and driver is not None:
            return driver
        raise OSError(name)

    return load


@pytest.mark.parametrize(
    ("driver", "count"),
    [
        (Driver(2), 2),
        (Driver(0), 0),
        (Driver(2, start_error=100), 0),  # CUDA_ERROR_NO_DEVICE
        (Driver(2, count_error=1), 0),
        (object(), 0),  # a library of that name with other contents
        (None, 0),
    ],
)
def test_counts_what_the_driver_shows(driver, count):
    assert gpus.visible(loader(driver)) == count


@pytest.mark.parametrize(
    ("visible", "even_with_gpus", "refused"),
    [(0, False, False), (0, True, False), (1, False, True), (4, False, True), (4, True, False)],
)
def test_gpus_are_left_to_the_command_itself(visible, even_with_gpus, refused):
    """On a machine with GPUs a rehearsal is most likely a mistake."""
    reason = rehearse.refusal(visible, even_with_gpus)
    assert bool(reason) is refused
    assert not refused or "--even-with-gpus" in reason


def test_where_there_are_gpus_nothing_is_started(monkeypatch, capfd):
    monkeypatch.setattr(gpus, "visible", lambda: 2)
    command = [sys.executable, "-c", "print('started', __import__('os').environ['CUDA_VISIBLE_DEVICES'])"]
    assert main.main(["rehearse", "--", *command]) == 2
    out, err = capfd.readouterr()
    assert "2 GPUs are visible" in err
    assert "started" not in out
    assert main.main(["rehearse", "--even-with-gpus", "--", *command]) == 0
    assert "started -1" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ([], {}, "rehearse what?"),
        (["--", "true"], {"DDP_PATCHES": "0"}, "DDP_PATCHES=0"),
        (["--", "docker", "run", "image"], {}, "container"),
        (["-n", "1", "--", "true"], {}, "from 2 to"),
        (["-n", "two", "--", "true"], {}, "from 2 to"),
    ],
)
def test_what_cannot_be_rehearsed_is_not_started(arguments, variables, message):
    """Nor is it run without the stand-ins: a rehearsal that is none would be taken for one."""
    finished = start(*arguments, **variables)
    assert finished.code == 2
    assert message in finished.err
    assert "REHEARSAL" not in finished.err


# --- what the command gets ------------------------------------------------------------------------------


def test_the_command_is_armed_for_as_long_as_it_runs():
    finished = start("-n", "3", "--", sys.executable, "-c", SHOW)
    seen = json.loads(finished.out)
    assert seen["obstacle"] == ""
    assert permit.decode(seen[permit.VARIABLE]).ranks == 3
    assert seen["CUDA_VISIBLE_DEVICES"] == "-1"
    assert "DDP_PATCHES_ARMED" in seen
    assert "ended" in permit.obstacle({permit.VARIABLE: seen[permit.VARIABLE]})
    assert finished.err.count("REHEARSAL") == 2  # before and after


def test_without_patches_only_the_stand_ins_are_left():
    finished = start("--without-patches", "--skip", "mine.*", "--", sys.executable, "-c", SHOW)
    skipped = json.loads(finished.out)["DDP_PATCHES_SKIP"].split(",")
    assert skipped[0] == "mine.*"
    assert "torch.barrier_device_ids" in skipped
    assert not [name for name in skipped if name.startswith("rehearse.")]
    assert "DDP_PATCHES_SKIP" not in json.loads(start("--", sys.executable, "-c", SHOW).out)


def test_settings_are_options_as_with_run():
    finished = start("--timeout", "4h", "--", sys.executable, "-c", SHOW)
    assert json.loads(finished.out)["DDP_PATCHES_TIMEOUT"] == "4h"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ([sys.executable, "-c", "raise SystemExit(7)"], 7),
        ([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], 137),
        (["no-such-program"], 127),
        ([str(pathlib.Path(__file__).parent)], 126),
    ],
)
def test_exit_code_is_the_commands(command, code):
    assert start("--", *command).code == code


def test_script_without_first_line_runs_as_in_a_shell(tmp_path):
    path = tmp_path / "script"
    path.write_text("exit 5\n", encoding="utf-8")
    path.chmod(0o755)
    assert start("--", path).code == 5


# --- signals --------------------------------------------------------------------------------------------

COUNT_SIGNALS = """
import signal, sys, time
counts = {}
def note(number, frame):
    counts[number] = counts.get(number, 0) + 1
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, note)
print("ready", flush=True)
deadline = time.monotonic() + 30
while not counts and time.monotonic() < deadline:
    time.sleep(0.05)
time.sleep(1)  # for a second one to arrive
print("counts", sorted(counts.items()), flush=True)
sys.exit(9)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_are_handed_on(number):
    """As from `kill PID`, a scheduler, a supervisor. The command decides what they mean."""
    process = subprocess.Popen(
        [*OURS, "--", sys.executable, "-c", COUNT_SIGNALS],
        env=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert out == "counts [(%d, 1)]\n" % number, err
    assert process.returncode == 9


def test_interrupt_from_the_terminal_arrives_once():
    """The terminal gives Ctrl-C to the whole foreground group: handed on, it would arrive twice.

    A second Ctrl-C makes many programs leave without cleaning up.
    """
    spawn = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
    process = subprocess.Popen(
        [sys.executable, "-c", spawn, *OURS, "--", sys.executable, "-c", COUNT_SIGNALS],
        env=HERE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        shown = ""
        deadline = time.monotonic() + 60
        while "ready" not in shown and time.monotonic() < deadline:
            shown += process.stdout.readline()
        process.stdin.write("\x03")
        process.stdin.flush()
        while "counts" not in shown and time.monotonic() < deadline:
            shown += process.stdout.readline()
        out, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert "counts [(%d, 1)]" % signal.SIGINT in shown + out
    assert process.returncode == 9
