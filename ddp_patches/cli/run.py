"""``ddp-patches run -- CMD…``: any command, with the patches in every Python that it starts."""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import signal
import subprocess
import sys
from typing import Mapping, Sequence

from .. import propagation, settings
from . import installations, settings_flags, slurm

HELP = "run a command with the patches in every Python that it starts"

# As in a shell.
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127

_EXAMPLES = """\
examples:
  ddp-patches run -- python train.py
  ddp-patches run -- yolo detect train data=coco8.yaml model=yolov8n.pt device=0,1
  ddp-patches run --timeout 4h -- torchrun --nproc_per_node 2 train.py
  ddp-patches run -- bash tools/dist_train.sh config.py 2
  srun ddp-patches run --from-slurm -- python train.py

CMD replaces this program: its arguments, exit code and signals are its own. A command that hands the
work to another machine or into a container comes first: srun ... ddp-patches run -- python train.py.
Not reached: python -E, -I and -S, and a Python of another installation than the one that ddp-patches is
installed in. DDP_PATCHES_TRACE=1 shows what every Python decides.
"""

# What is said of commands that start the work somewhere else, where our variables may not arrive.
_ELSEWHERE = {
    "srun": "may start processes on other machines, without these variables",
    "mpirun": "may start processes on other machines, without these variables",
    "mpiexec": "may start processes on other machines, without these variables",
    "ssh": "starts the command on another machine, without these variables",
    "docker": "starts the command in a container, which has neither these variables nor this Python",
    "podman": "starts the command in a container, which has neither these variables nor this Python",
    "apptainer": "starts the command in a container, which has another Python",
    "singularity": "starts the command in a container, which has another Python",
    "sudo": "drops most variables, these included",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "ddp-patches run [options] [--] CMD [arguments of CMD]"
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--from-slurm",
        action="store_true",
        help="in a task of srun: fill RANK, LOCAL_RANK, WORLD_SIZE, MASTER_* from Slurm's variables",
    )
    settings_flags.add_flags(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="CMD", help="the command and its arguments"
    )


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by the command; returns only where that fails (126, 127, 2) or on Windows."""
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        _say("run what? For example: ddp-patches run -- python train.py")
        return 2
    environ = dict(os.environ)
    environ.update(settings_flags.chosen(arguments))
    # The tasks of one srun all come past here; the first speaks for them.
    speaks = environ.get("SLURM_PROCID", "0") == "0"
    if not settings_flags.accept(environ, quiet=not speaks):
        return 2
    if arguments.from_slurm:
        decision = slurm.decide(environ)
        environ.update(decision.variables)
        for line in decision.notes:
            _say(f"--from-slurm: {line}")
        if decision.problem and speaks:
            _say(f"--from-slurm: {decision.problem}")
    propagation.arm(environ)
    doubt = warning(command, environ)
    if doubt and speaks:
        _say(doubt)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if os.name == "nt":
            return _run_as_child(command, environ)
        _restore_signals()
        _execute(command, environ)
    except OSError as error:
        _say(f"cannot run {command[0]}: {error.strerror or error}")
        return EXIT_NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else EXIT_NOT_EXECUTABLE
    return 0


def warning(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Why this command will run without patches, as far as files can tell; else an empty string."""
    if settings.is_off(environ):
        return f"{settings.SWITCH}={environ[settings.SWITCH]} is set: the command runs without any patch"
    if propagation.obstacle():
        return f"nothing will be patched: {propagation.obstacle()}"
    program = os.path.basename(command[0]).split(".")[0]  # mpiexec.hydra, docker.exe
    if program in _ELSEWHERE:
        order = f"{program} ... ddp-patches run -- python train.py"
        return f"{program} {_ELSEWHERE[program]}; put ddp-patches behind it: {order}"
    switch = installations.unreachable_switch(command)
    if switch:
        return f"with {switch}, Python ignores what ddp-patches sets: nothing will be patched"
    other = installations.other_installation(command, environ)
    if other is not None:
        ours = installations.own()
        theirs = f"Python {other.version}" if other.version else "the Python"
        return (
            f"nothing will be patched: {shlex.quote(command[0])} uses {theirs} of {other.prefix}, and "
            f"ddp-patches is installed for Python {ours.version} of {ours.prefix}; install it there, too"
        )
    return ""


def _execute(command: Sequence[str], environ: Mapping[str, str]) -> None:
    try:
        os.execvpe(command[0], list(command), environ)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    # A script without a first line that names its shell: every shell runs it with sh, Python does not.
    path = installations.find_program(command[0], environ)
    os.execve("/bin/sh", ["/bin/sh", path, *command[1:]], environ)


def _restore_signals() -> None:
    # Python ignores these from its start, and what is ignored stays so in the program that follows:
    # `ddp-patches run -- yes | head` would never end.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)


def _run_as_child(command: Sequence[str], environ: Mapping[str, str]) -> int:
    # Windows has no exec: os.execvpe would give the shell its prompt back while the command still runs.
    # Ctrl-C goes to everyone at the console; the child decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return subprocess.call([installations.find_program(command[0], environ), *command[1:]], env=environ)


def _say(line: str) -> None:
    print(f"ddp-patches: {line}", file=sys.stderr)
