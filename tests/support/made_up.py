"""A made-up torch and a made-up framework, for tests of the engine: not every Python has the real ones.

The framework's one function of interest is held in three modules, under two names, and in a class.
"""

from __future__ import annotations

import pathlib
import sys
import textwrap
from typing import Mapping

from support import environment, interpreters

PACKAGES = {
    "torch/__init__.py": """
        from . import version
        __version__ = version.__version__
        from . import late
    """,
    "torch/version.py": "__version__ = '2.99.0'\n",
    "torch/late.py": "",
    "framework/__init__.py": "__version__ = '1.2.0'\n",
    "framework/work.py": """
        import torch

        def work(amount):
            "How much was done."
            return "upstream did %s" % amount

        class Worker:
            def work(self, amount):
                return "upstream's worker did %s" % amount
    """,
    "framework/user.py": "from framework.work import work, work as labour\n",
    # Declares a patch for each of the two, in the way in which ours are written.
    "framework_patches.py": """
        from ddp_patches import patch

        PATCH = patch("framework.work", package="framework", summary="works harder")

        @PATCH.replaces("framework.work|framework.older_work:work", parameters=("amount",))
        def work(original):
            def replacement(amount):
                return "patched, " + original(amount)
            return replacement

        @PATCH.replaces("framework.work:Worker.work", parameters=("amount",))
        def worker(original):
            def replacement(self, amount):
                return "patched, " + original(self, amount)
            return replacement

        def rows():
            from ddp_patches.engine import ledger
            return [row for row in ledger.rows() if row.package == "framework"]

        def states():
            return [row.state for row in rows()]
    """,
}


def write(folder: pathlib.Path, **changed: str) -> pathlib.Path:
    """Write the packages into `folder`; `torch__late="…"` stands for other text in `torch/late.py`."""
    files: dict[str, str] = dict(PACKAGES)
    files.update({name.replace("__", "/", 1) + ".py": text for name, text in changed.items()})
    write_files(folder, files)
    return folder


def write_files(folder: pathlib.Path, files: Mapping[str, str]) -> None:
    """Write texts, indented or not, by their paths in `folder`."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")


def run(folder: pathlib.Path, program: str, limit_s: float = 60, **variables: str) -> interpreters.Finished:
    """Run a program, indented or not, in a Python of its own that finds the packages of `folder`."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return interpreters.run(command, environment.clean(folder, folder, **variables), folder, limit_s=limit_s)


def lines(folder: pathlib.Path, program: str, limit_s: float = 60, **variables: str) -> list[str]:
    """What the program prints, line by line. It must end well and write nothing to standard error."""
    finished = run(folder, program, limit_s, **variables)
    assert (finished.code, finished.err) == (0, ""), finished.out + finished.err
    return finished.out.splitlines()
