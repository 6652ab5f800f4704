"""Which Python would a command start, and is it the installation that ddp_patches is in?

Answered from files alone, without starting an interpreter, and only where there is no doubt: a wrong
warning in front of every training would soon be read by nobody.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import Mapping, NamedTuple, Sequence

_SHEBANG_BYTES = 1024  # a line of more than 127 or 255 bytes is cut or refused by most kernels


class Installation(NamedTuple):
    """A Python installation as ``sys.prefix`` names it, and its version where it is known ("3.11")."""

    prefix: str
    version: str = ""


def own() -> Installation:
    """The one that runs this."""
    major, minor = sys.version_info[:2]
    return Installation(os.path.realpath(sys.prefix), f"{major}.{minor}")


def other_installation(command: Sequence[str], environ: Mapping[str, str]) -> Installation | None:
    """The installation that ``command`` would start, if it surely starts one and that is not ours."""
    interpreter = interpreter_of(command, environ)
    found = installation_of(interpreter) if interpreter and not environ.get("PYTHONHOME") else None
    if found is None:
        return None
    ours = own()
    same_version = not found.version or found.version == ours.version
    return None if found.prefix == ours.prefix and same_version else found


def interpreter_of(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """The path of the Python that ``command`` starts, or an empty string where that is not certain.

    Either its first word is one, or it is a script whose first line names one, such as ``torchrun``.
    """
    program = find_program(command[0], environ)
    if _looks_like_python(program):
        return program
    try:
        with open(program, "rb") as file:
            head = file.read(_SHEBANG_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return _from_shebang(head, environ)


def find_program(name: str, environ: Mapping[str, str]) -> str:
    """Where ``environ``'s PATH has the program ``name``; ``name`` itself where it has none."""
    return shutil.which(name, path=environ.get("PATH", os.defpath)) or name


def _from_shebang(lines: Sequence[str], environ: Mapping[str, str]) -> str:
    if not lines[0].startswith("#!"):
        return ""
    words = lines[0][2:].split()
    if words and os.path.basename(words[0]) == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        interpreter = find_program(named[0], environ) if named else ""
    elif words and os.path.basename(words[0]) == "sh" and len(lines) > 1:
        # pip and uv write this where the path is too long, or has a space, for a first line.
        match = re.match(r"""'''exec' ["']?(.+?)["']? "\$0" "\$@\"""", lines[1])
        interpreter = match.group(1) if match else ""
    else:
        interpreter = words[0] if words else ""
    return interpreter if _looks_like_python(interpreter) else ""


def _looks_like_python(path: str) -> bool:
    return re.fullmatch(r"python(\d+(\.\d+)?)?t?(\.exe)?", os.path.basename(path).lower()) is not None


def installation_of(interpreter: str) -> Installation | None:
    """Where an interpreter's ``sys.prefix`` is, or None where the files around it do not tell.

    Python itself looks for ``pyvenv.cfg`` beside the interpreter and one folder up, without following
    links; else the prefix is the folder whose standard library belongs to the real file.
    """
    folder = os.path.dirname(os.path.abspath(interpreter))
    for place in (folder, os.path.dirname(folder)):
        config = os.path.join(place, "pyvenv.cfg")
        if os.path.isfile(config):
            # The prefix is the folder above bin or Scripts, wherever the file lies.
            return Installation(os.path.realpath(os.path.dirname(folder)), _version_in(config))
    real = os.path.realpath(interpreter)
    prefix = os.path.dirname(os.path.dirname(real))
    match = re.fullmatch(r"(python(\d+\.\d+))t?", os.path.basename(real))
    for lib in ("lib", "lib64"):
        if match and os.path.isfile(os.path.join(prefix, lib, match.group(1), "os.py")):
            return Installation(prefix, match.group(2))
    return None  # a shim, a wrapper, an unusual layout


def unreachable_switch(command: Sequence[str]) -> str:
    """The option of a Python command with which no ``sitecustomize`` is run (-E, -I, -S), or nothing."""
    if not _looks_like_python(command[0]):
        return ""
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word.startswith("--") or word == "-":
            return ""
        for position, letter in enumerate(word[1:], 1):
            if letter in "EIS":
                return f"-{letter}"
            if letter in "cm":
                return ""
            if letter in "WX":  # the value is the rest of the word, or the next one
                if position == len(word) - 1:
                    next(words, None)
                break
    return ""


def _version_in(config: str) -> str:
    try:
        with open(config, encoding="utf-8", errors="replace") as file:
            match = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+)", file.read(), re.MULTILINE)
    except OSError:
        return ""
    return match.group(1) if match else ""
