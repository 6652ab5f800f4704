"""Other Pythons, and short programs run in them: for what happens outside the test's own process."""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from typing import Mapping, NamedTuple, Sequence

import ddp_patches

# The folder that makes ddp_patches importable, installed or not.
PACKAGE_PARENT = pathlib.Path(ddp_patches.__file__).resolve().parents[1]

LIMIT_S = 60.0  # for programs of a second or two, on a busy machine


class Finished(NamedTuple):
    """A program that has ended; ``code`` is negative where a signal ended it."""

    code: int
    out: str
    err: str


def run(
    command: Sequence[object],
    environ: Mapping[str, str],
    folder: object = None,
    stdin: str = "",
    limit_s: float = LIMIT_S,
) -> Finished:
    """Run ``command`` in a process group of its own, which is ended as a whole after ``limit_s``."""
    child = subprocess.Popen(
        [str(word) for word in command],
        env=dict(environ),
        cwd=None if folder is None else str(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        out, err = child.communicate(stdin, timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        raise AssertionError(f"still running after {limit_s:g} s: {command}\n{out}\n{err}") from None
    try:
        os.killpg(child.pid, signal.SIGKILL)  # whatever it has left behind
    except (ProcessLookupError, PermissionError):
        pass
    return Finished(child.returncode, out, err)


def plain_environment(**variables: str) -> dict[str, str]:
    """The environment without anything of Python's, ours, or a launcher's, and with ``variables``."""
    ours = ("PYTHON", "DDP_PATCHES", "SLURM_", "TORCH", "VIRTUAL_ENV", "COV_")
    alone = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(ours) and name not in alone
    }
    return {**kept, **variables}


def venv(folder: pathlib.Path) -> pathlib.Path:
    """A new, empty virtual environment of this Python; returns its interpreter."""
    base = getattr(sys, "_base_executable", sys.executable)
    made = run([base, "-m", "venv", "--without-pip", folder], plain_environment())
    assert made.code == 0, made.err
    return folder / "bin" / "python"


def site_packages(folder: pathlib.Path) -> pathlib.Path:
    """Where a virtual environment of this Python keeps its packages."""
    major, minor = sys.version_info[:2]
    return folder / "lib" / f"python{major}.{minor}" / "site-packages"


@functools.lru_cache(maxsize=None)
def find(version: str) -> str | None:
    """An interpreter of ``version`` ("2.7"), on PATH or among pyenv's; None where there is none."""
    root = pathlib.Path(os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv")
    candidates = [shutil.which(f"python{version}")]
    candidates += sorted(str(path) for path in root.glob(f"versions/{version}.*/bin/python"))
    ask = "import sys; sys.stdout.write('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        # A pyenv shim is found by which, and fails unless its version is switched on.
        if run([candidate, "-c", ask], plain_environment()).out == version:
            return candidate
    return None
