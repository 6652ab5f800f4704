"""``ddp-patches COMMAND``: finds the command's module and hands over.

A command module has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(arguments) -> exit code``.
Only the module that is asked for is imported, and none imports torch before it needs it: ``run`` stands
in front of every training.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import shutil
import signal
import sys
from types import ModuleType
from typing import Sequence

COMMANDS = ("run", "env", "status", "probe", "selftest", "explain", "rehearse", "list")

EXIT_USAGE = 2  # argparse's own
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_BROKEN_PIPE = 128 + 13  # what a shell shows for a program that SIGPIPE ended; Windows has no such name

_OVERVIEW = """\
usage: ddp-patches COMMAND [options]

Keeps multi-GPU training with Ultralytics, YOLOv5 and OpenMMLab from hanging, without changing a file
on disk, and says which rank is missing when it waits.

commands:
{commands}

examples:
  ddp-patches run -- yolo detect train data=coco8.yaml model=yolov8n.pt device=0,1
  ddp-patches run --timeout 4h -- torchrun --nproc_per_node 2 train.py
  ddp-patches selftest          does it work on this machine, and if not, why
  ddp-patches status            what is patched, and what the last job did

In Python, the same as the first line of a script: import ddp_patches.auto
DDP_PATCHES=0 turns everything off. 'ddp-patches COMMAND --help' explains a command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 2 for a wrong command line, 130 after Ctrl-C.

    ``--help`` and a command's wrong options leave with SystemExit, as argparse does everywhere.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(words)
        sys.stdout.flush()  # here, so that a reader that has left is noticed while we can still be quiet
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # `ddp-patches list | head`. Python flushes once more when it ends and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview(), end="")
        return 0
    if words[0] in ("-V", "--version"):
        from .. import __version__

        print(f"ddp-patches {__version__}")
        return 0
    if words[0] not in COMMANDS:
        print(f"ddp-patches: {unknown(words)}", file=sys.stderr)
        return EXIT_USAGE
    command = _load(words[0])
    parser = argparse.ArgumentParser(
        prog=f"ddp-patches {words[0]}",
        description=command.HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    return int(command.run(parser.parse_args(words[1:])))


def _load(name: str) -> ModuleType:
    return importlib.import_module(f"{__package__}.{name}")


def overview() -> str:
    """What ``ddp-patches`` prints without a command: every command with its line of help."""
    lines = [f"  {name:<10}{_load(name).HELP}" for name in COMMANDS]
    return _OVERVIEW.format(commands="\n".join(lines))


def unknown(words: Sequence[str]) -> str:
    """The answer to a first word that is no command: the nearest one, or how to run a program."""
    word = words[0]
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    if near:
        return f"there is no command {word!r}; did you mean {near[0]!r}?"
    if word.startswith("-"):
        return f"{word} needs a command in front of it, such as: ddp-patches run {word} ..."
    if shutil.which(word) or os.path.exists(word):
        return f"{word!r} is no command of ours; to run it with the patches: ddp-patches run -- {word} ..."
    return f"there is no command {word!r}; there are {', '.join(COMMANDS)}"


if __name__ == "__main__":
    sys.exit(main())
