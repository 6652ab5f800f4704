"""The ways in which a child process is started that ``probe`` tries, and why one of them was not armed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence

from ..runtime import sockets

CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe_child.py")
PLACEHOLDER = "{probe}"

# These take a Python program, and start the interpreter themselves; everything else takes a command.
_TAKE_A_PROGRAM = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")
_NO_PYTHON = ("--no_python", "--no-python")

_SHORT, _LONG = 20, 60  # seconds; the long ones import torch, from a cold network disk perhaps


class Kind(NamedTuple):
    """One way to start a child: ``command`` runs it, or ``missing`` says why it is not tried here.

    ``expected`` is False for what is known to be out of reach. ``limit`` in seconds.
    """

    name: str
    what: str
    command: Sequence[str] = ()
    expected: bool = True
    limit: int = _SHORT
    missing: str = ""


def kinds(token: str, folder: str, with_torch: bool) -> List[Kind]:
    """All kinds, in the order in which they are tried."""
    python = sys.executable
    own = [CHILD, token, folder]
    found = [Kind("subprocess", "python started by subprocess", [python, *own])]
    for method in ("fork", "spawn", "forkserver"):
        what = "multiprocessing, start method %s" % method
        missing = "" if method in _start_methods() else "there is no %s on this system" % method
        found.append(Kind(method, what, [python, *own, method], missing=missing))
    shell = shutil.which("bash") or ""
    found.append(
        Kind("bash", "python in bash -c", [shell, "-c", '"$0" "$@"; exit $?', python, *own],
             missing="" if shell else "there is no bash")
    )  # fmt: skip
    no_torch = _why_no_torch(with_torch)
    port = str(sockets.free_port())
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", "1", "--master_port", port]
    found += [
        Kind(
            "loader", "worker of a torch DataLoader", [python, *own, "loader"], limit=_LONG, missing=no_torch
        ),
        Kind("torchrun", "torch.distributed.run", [python, *torchrun, *own], limit=_LONG, missing=no_torch),
        Kind("python -E", "python that ignores the environment", [python, "-E", *own], expected=False),
    ]
    return found


def _start_methods() -> List[str]:
    import multiprocessing

    return multiprocessing.get_all_start_methods()


def _why_no_torch(wanted: bool) -> str:
    if not wanted:
        return "left out by --no-torch"
    # The top-level name alone: nothing is imported.
    return "" if importlib.util.find_spec("torch") is not None else "torch is not installed"


def launched(launcher: Sequence[str], token: str, folder: str) -> List[str]:
    """The launcher's words with the probe in the place of the training.

    ``{probe}`` as a word, or inside one (``bash -c '… {probe}'``), is replaced by it; else it is appended:
    as a program where the launcher starts Python itself, else as a command.
    """
    if any(PLACEHOLDER in word for word in launcher):
        command = [sys.executable, CHILD, token, folder]
        words: List[str] = []
        for word in launcher:
            words += command if word == PLACEHOLDER else [word.replace(PLACEHOLDER, _shell(command))]
        return words
    program = [CHILD, token, folder]
    return [*launcher, *program] if takes_a_program(launcher) else [*launcher, sys.executable, *program]


def _shell(words: Sequence[str]) -> str:
    import shlex

    return " ".join(shlex.quote(word) for word in words)


def takes_a_program(launcher: Sequence[str]) -> bool:
    """Whether what follows the launcher's words is a Python program, rather than a command."""
    names = [os.path.basename(word) for word in launcher]
    return any(name in _TAKE_A_PROGRAM for name in names) and not any(name in _NO_PYTHON for name in names)


def why_not(facts: Mapping[str, Any], installation: str) -> str:
    """Why a process that gave these facts is not armed; an empty string if it is.

    ``installation``: this Python and this package, as :func:`ddp_patches.propagation.installation` has it.
    """
    if facts.get("armed"):
        return ""
    if facts.get("switches"):
        return "started with %s, with which Python ignores what ddp-patches sets" % facts["switches"][0]
    if str(facts.get("off", "")).strip().lower() in ("0", "off", "false", "no"):
        return "DDP_PATCHES=%s is set there" % facts["off"]
    if not facts.get("marker"):
        return "its environment has none of our variables: something on the way starts it with others"
    if facts["marker"] != installation:
        return "the variables there are of another installation: %s" % facts["marker"].replace("|", ", ")
    version, prefix = installation.split("|")[:2]
    if (facts.get("version"), facts.get("prefix")) != (version, prefix):
        return "a Python of another installation: %s in %s" % (facts.get("version"), facts.get("prefix"))
    if not facts.get("on_path"):
        return "PYTHONPATH has been replaced on the way; ours was %s" % bootstrap()
    if facts.get("sitecustomize"):
        return "another start-up file came first: %s" % facts["sitecustomize"]
    return "the start-up file did not run there; DDP_PATCHES_TRACE=1 shows what each Python decides"


def bootstrap() -> str:
    """The folder that goes on PYTHONPATH."""
    from .. import propagation

    return propagation.bootstrap_directory()


def no_answer(code: Optional[int], limit: float, errors: str) -> str:
    """Why nothing came back: ``code`` is None where the limit ended it."""
    if code is None:
        return "gave no answer within %g s" % limit
    last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
    return "ended with code %d without an answer%s" % (code, ": " + last if last else "")
