"""``ddp-patches rehearse -n 2 -- CMD…``: a multi-GPU command as CPU processes."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Callable, Mapping, MutableMapping, Sequence

from .. import propagation, settings
from ..rehearse import LINE_MARK, gpus, launcher, permit
from . import installations, settings_flags
from . import run as run_command

HELP = "run a multi-GPU command as CPU processes, to find a hang without GPUs"

_SKIP = settings.PREFIX + "SKIP"
DEFAULT_RANKS = 2
MOST_RANKS = 64  # CPU processes on one machine; more is a typing error

_EXAMPLES = """\
examples:
  ddp-patches rehearse -n 2 -- yolo detect train data=data.yaml model=yolov8n.yaml epochs=1 imgsz=64
  ddp-patches rehearse -n 2 -- python train.py
  ddp-patches rehearse -n 2 --without-patches -- python train.py
  ddp-patches rehearse -n 2 -- python tools/train.py config.py --launcher pytorch
  ddp-patches rehearse -- torchrun --nproc_per_node 2 tools/train.py config.py --launcher pytorch

Ultralytics launches N workers, whatever device= says; each trains on the CPU, over gloo. OpenMMLab's
--launcher pytorch expects torchrun around it: without one, N processes are started through it. A torchrun
in the command, dist_train.sh included, is told the number of processes itself; N is then how many GPUs
there seem to be. Rehearsed are the order of the steps, who waits for whom, exceptions and time limits; not
speed, memory, or what NCCL does. Take few images and one epoch.
"""

# Sent on to the command. Ctrl-C and Ctrl-\\ are special: a terminal gives them to the command as well.
_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_TERMINAL = ("SIGINT", "SIGQUIT")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "ddp-patches rehearse -n N [options] [--] CMD [arguments of CMD]"
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "-n",
        dest="ranks",
        type=_ranks,
        metavar="N",
        help="how many GPUs (default: as many as the command gives to --nproc_per_node, else 2)",
    )
    parser.add_argument(
        "--even-with-gpus",
        action="store_true",
        help="also where there are GPUs, which are then hidden",
    )
    parser.add_argument(
        "--without-patches",
        action="store_true",
        help="the stand-ins alone, for a look at what happens without ddp_patches",
    )
    settings_flags.add_flags(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="CMD", help="the command and its arguments"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command as a child and return its exit code, 128 + number where a signal ended it.

    Returns 2 without starting it where nothing can be rehearsed, 126 or 127 where it cannot be started.
    """
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        _say("rehearse what? For example: ddp-patches rehearse -n 2 -- python train.py")
        return 2
    environ = dict(os.environ)
    environ.update(settings_flags.chosen(arguments))
    # What keeps `run` from patching a command keeps the stand-ins away from it as well.
    reason = refusal(gpus.visible(), arguments.even_with_gpus) or run_command.warning(command, environ)
    if reason:
        _say(f"not rehearsed: {reason}")
        return 2
    if arguments.without_patches:
        environ[_SKIP] = everything_but_stand_ins(environ.get(_SKIP, ""))
    if not settings_flags.accept(environ):
        return 2
    named = launcher.processes_named(command)
    ranks = arguments.ranks or named or DEFAULT_RANKS
    prepare(environ, ranks)
    _say(
        f"{LINE_MARK}: {named or ranks} CPU processes over gloo stand in for {ranks} GPUs; "
        "speed, memory and NCCL are not rehearsed"
    )
    completed = launcher.completed(command, environ, ranks)
    if completed != command:
        _say(f"{LINE_MARK}: --launcher pytorch expects a launcher, so torchrun starts {ranks} processes")
    begun = time.monotonic()
    code = _run_child(completed, environ)
    _say(f"{LINE_MARK} ended after {time.monotonic() - begun:.0f} s with exit code {code}")
    return code


def refusal(gpus_visible: int, even_with_gpus: bool) -> str:
    """Why nothing is rehearsed on this machine, or an empty string."""
    if os.name != "posix":
        return "a rehearsal needs Linux or macOS"
    if gpus_visible and not even_with_gpus:
        found = "a GPU is" if gpus_visible == 1 else f"{gpus_visible} GPUs are"
        return f"{found} visible, the command can run as it is; --even-with-gpus hides them and rehearses"
    return ""


def everything_but_stand_ins(skip: str) -> str:
    """The value of the setting ``skip`` that leaves out what it left out before, and every patch of ours."""
    from ..engine import catalogue

    ids = [entry.id for entry in catalogue.load() if not entry.id.startswith("rehearse.")]
    return ",".join([skip] * bool(skip) + ids)


def prepare(environ: MutableMapping[str, str], ranks: int) -> None:
    """Let the processes that are started with ``environ`` take part, as long as this one lives."""
    propagation.arm(environ)
    environ[permit.VARIABLE] = permit.give(ranks).encode()
    for variable in gpus.VISIBILITY_VARIABLES:
        environ[variable] = "-1"


def _run_child(command: Sequence[str], environ: Mapping[str, str]) -> int:
    child: list[subprocess.Popen] = []
    early: list[int] = []  # signals that came before there was anybody to send them to
    restore = _forward_signals(lambda number: child[0].send_signal(number) if child else early.append(number))
    try:
        child.append(_start(command, environ))
        for number in early:
            child[0].send_signal(number)
        return _exit_code(child[0].wait())
    except OSError as error:
        _say(f"cannot run {command[0]}: {error.strerror or error}")
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        return run_command.EXIT_NOT_FOUND if missing else run_command.EXIT_NOT_EXECUTABLE
    finally:
        restore()


def _start(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen:
    try:
        return subprocess.Popen(list(command), env=dict(environ))
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    # A script without a first line that names its shell, as in `run`.
    path = installations.find_program(command[0], environ)
    return subprocess.Popen(["/bin/sh", path, *command[1:]], env=dict(environ))


def _forward_signals(send: Callable[[int], None]) -> Callable[[], None]:
    """Give the signals that end or steer a program to the command; returns what restores the old handlers."""

    def forward(number: int, frame: FrameType | None) -> None:
        if number not in terminal or not _terminal_tells_child():
            send(number)

    terminal = {getattr(signal, name) for name in _FROM_TERMINAL}
    before: dict[int, object] = {}
    for name in _FORWARDED + _FROM_TERMINAL:
        number = getattr(signal, name)
        # What is ignored (nohup, a background job of a script) the command inherits as ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, forward)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    return restore


def _terminal_tells_child() -> bool:
    """Whether we are in the foreground of our terminal: Ctrl-C then reaches the command by itself."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _exit_code(returncode: int) -> int:
    return 128 - returncode if returncode < 0 else returncode


def _ranks(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 2 <= number <= MOST_RANKS:
        raise argparse.ArgumentTypeError(f"a number from 2 to {MOST_RANKS} is needed")
    return number


def _say(line: str) -> None:
    print(f"ddp-patches: {line}", file=sys.stderr, flush=True)
