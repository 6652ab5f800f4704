"""What nox finds on this machine, and what it must not hand on to the tests."""

from __future__ import annotations

import os
import pathlib
import re


def find_interpreters() -> None:
    """Let pyenv's interpreters be found: its commands answer only for versions that are switched on."""
    folder = pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    newest: dict[str, tuple[int, ...]] = {}
    for version in folder.glob("3.*"):
        if re.fullmatch(r"3\.\d+\.\d+", version.name):
            minor, numbers = version.name.rpartition(".")[0], tuple(map(int, version.name.split(".")))
            newest[minor] = max(numbers, newest.get(minor, numbers))
    versions = [".".join(map(str, numbers)) for numbers in sorted(newest.values(), reverse=True)]
    if versions:
        chosen = os.environ.get("PYENV_VERSION", "").split(":")
        os.environ["PYENV_VERSION"] = ":".join(dict.fromkeys([*filter(None, chosen), *versions]))
        # For those who use pyenv's interpreters without its commands on PATH.
        binaries = [str(folder / version / "bin") for version in versions]
        os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *binaries])


def prepare_environment() -> None:
    """Tell uv and pip the same folders, and keep this shell's own settings away from the tests."""
    if os.environ.get("PIP_FIND_LINKS"):
        os.environ.setdefault("UV_FIND_LINKS", ",".join(os.environ["PIP_FIND_LINKS"].split()))
    elif os.environ.get("UV_FIND_LINKS"):
        os.environ["PIP_FIND_LINKS"] = os.environ["UV_FIND_LINKS"].replace(",", " ")
    os.environ.setdefault("UV_PYTHON_DOWNLOADS", "never")
    # The tests start hundreds of processes that import torch: 2 s each, and 5 s if each compiles it again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in list(os.environ):
        if name.startswith("DDP_PATCHES") or name == "PYTHONPATH":
            del os.environ[name]
