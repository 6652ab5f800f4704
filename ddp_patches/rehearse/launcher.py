"""Who starts the ranks: the command by itself, a launcher that the command names, or we for it."""

from __future__ import annotations

import re
from typing import Mapping, Sequence

from ..runtime import sockets

# Interpreter options that take their value from the next argument.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def processes_named(command: Sequence[str]) -> int | None:
    """How many processes the command tells torchrun to start; None where it names no number."""
    for position, argument in enumerate(command):
        option, _, value = argument.partition("=")
        if option in ("--nproc_per_node", "--nproc-per-node"):
            value = value or "".join(command[position + 1 : position + 2])
            return int(value) if value.isdecimal() else None
    return None


def completed(command: Sequence[str], environ: Mapping[str, str], ranks: int) -> list[str]:
    """The command, with torchrun before a script that waits for one.

    OpenMMLab's ``python tools/train.py CONFIG --launcher pytorch`` takes its rank from the environment, and
    ends in a KeyError where nobody has put it there. Others' commands are returned as they are.
    """
    script = _script(command)
    if script is None or "RANK" in environ or not _wants_torchrun(command[script + 1 :]):
        return list(command)
    torchrun = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}"]
    place = ["--master_addr=127.0.0.1", f"--master_port={sockets.free_port()}"]
    return [*command[:script], *torchrun, *place, *command[script:]]


def _script(command: Sequence[str]) -> int | None:
    """Where in ``python [options] script.py …`` the script is."""
    if not re.fullmatch(r"(.*/)?python[\d.]*", command[0]):
        return None
    position = 1
    while position < len(command) and command[position].startswith("-"):
        position += 2 if command[position] in _WITH_VALUE else 1
    is_script = position < len(command) and command[position].endswith(".py")
    has_module = any(option.startswith(("-m", "-c")) for option in command[1:position])
    return position if is_script and not has_module else None


def _wants_torchrun(arguments: Sequence[str]) -> bool:
    pairs = zip(arguments, arguments[1:])
    return "--launcher=pytorch" in arguments or ("--launcher", "pytorch") in pairs
