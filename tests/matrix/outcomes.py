"""Run a cell of the matrix, keep what came of it, and list it all at the end."""

from __future__ import annotations

import atexit
import datetime
import json
import os
import pathlib
import tempfile
import xml.etree.ElementTree
from typing import Any, Callable, Sequence

import nox

from matrix import install, passed, results, table
from support import releases

# Asks the environment what a row says of it.
_MACHINE = """
import importlib.metadata, json, platform, sys
row = {"platform": platform.system() + " " + platform.machine(), "python": platform.python_version()}
for name in ("torch", "wrapt", "packaging"):
    try:
        row[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
if "nccl" in sys.argv:
    import torch.distributed
    row["nccl"] = torch.distributed.is_available() and torch.distributed.is_nccl_available()
print(json.dumps(row))
"""

# Of this run, by the name of the cell.
_lines: dict[str, str] = {}


def asked_for(cells: list[dict[str, Any]], arguments: Sequence[str]) -> list[dict[str, Any]]:
    """The cells with one of the words in their name, or all if there are no words; options are none."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    return [cell for cell in cells if not words or any(word in cell["name"] for word in words)]


def session_id(python: object, environment: object) -> str:
    """What stands in the brackets of a session's name."""
    return "%s, %s" % (python, environment)


def of_session(cells: list[dict[str, Any]], python: object, environment: object) -> list[dict[str, Any]]:
    """Those of the cells that run in this environment on this Python."""
    return [cell for cell in cells if (cell["python"], cell["environment"]) == (python, environment)]


def plan(cells: list[dict[str, Any]]) -> None:
    """Have these cells listed at the end, whatever keeps them from being run."""
    for cell in cells:
        _lines.setdefault(cell["name"], "not run: its session did not come to it")


def list_at_exit(sessions: dict[str, list[dict[str, Any]]], arguments: Sequence[str]) -> str:
    """Have one line for each cell of this run printed when nox ends.

    Returns where nox has to put its report: of a session whose interpreter is missing only nox knows.
    """
    descriptor, path = tempfile.mkstemp(suffix=".json")
    os.close(descriptor)
    atexit.register(_list, pathlib.Path(path), sessions, arguments)
    return path


def _list(report: pathlib.Path, sessions: dict[str, list[dict[str, Any]]], arguments: Sequence[str]) -> None:
    written = report.read_text(encoding="utf-8")
    report.unlink()
    not_started = []
    for session in json.loads(written)["sessions"] if written else []:
        for cell in asked_for(sessions.get(session["name"], []), arguments):
            name = "%s(%s)" % (session["name"], session_id(cell["python"], cell["environment"]))
            if name in session["signatures"] and cell["name"] not in _lines:
                reason = session.get("reason") or "its session did not start: no Python %s?" % cell["python"]
                not_started.append({**_row(cell), "reason": reason})
                _lines[cell["name"]] = _line(not_started[-1])
    if _lines:
        print("\nCells:", flush=True)
    for cell_name, line in _lines.items():
        print("  %-24s %s" % (cell_name, line), flush=True)
    for row in not_started:
        results.keep(row)


def run_cell(session: nox.Session, cell: dict[str, Any], problem: str, run_tests: Callable[..., None]) -> str:
    """Run one cell, unless there is a problem already; keep and return what came of it.

    Whatever goes wrong is the outcome of this cell: the next ones are run all the same.
    """
    row = _row(cell)
    try:
        layers = install.layers(session, "-newest" if cell.get("newest") else "")
        problem = problem or _prepare(session, cell, layers, row)
        if problem:
            row["reason"] = problem
        else:
            row["outcome"] = results.FAILED
            row.update(_run(session, cell, layers, run_tests))
    except Exception as error:
        row["reason"] = "%s: %s" % (type(error).__name__, error)
    try:
        results.keep(row)
        table.main()  # at once: a test of the next cell compares what is written with the outcomes
        passed.main()
    except Exception as error:
        row.update(outcome=results.FAILED, reason="its outcome could not be written down: %r" % error)
    _lines[cell["name"]] = _line(row)
    return str(row["outcome"])


def _row(cell: dict[str, Any]) -> dict[str, Any]:
    """What is known of an outcome before anything of the cell was done: it was not run."""
    row: dict[str, Any] = {"cell": cell["name"], "environment": cell["environment"], "run": cell["run"]}
    row.update(date=datetime.date.today().isoformat(), python=cell["python"])
    commit = results.commit()
    return {**row, **({"commit": commit} if commit else {}), "outcome": results.NOT_RUN}


def _prepare(session: nox.Session, cell: dict[str, Any], layers: pathlib.Path, row: dict[str, Any]) -> str:
    """Install what the cell needs and note what it runs on; the problem, if there is one."""
    needs_nccl = releases.ENVIRONMENTS[cell["environment"]].get("nccl", False)
    answer = str(session.run("python", "-c", _MACHINE, *(["nccl"] if needs_nccl else []), silent=True))
    row.update(json.loads(answer.strip().splitlines()[-1]))
    if needs_nccl and not row["nccl"]:
        return "this torch is a build without NCCL: what offers it here (UV_TORCH_BACKEND, a folder)?"
    return _install_releases(session, cell, layers, row)


def _run(
    session: nox.Session, cell: dict[str, Any], layers: pathlib.Path, run_tests: Callable[..., None]
) -> dict[str, Any]:
    """What came of the cell's tests."""
    found: dict[str, Any] = {"outcome": results.PASSED}
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "junit.xml")
        try:
            arguments = [*cell["run"], *_selection(cell), "--junitxml", str(report)]
            run_tests(session, *arguments, TEST_LAYERS=str(layers))
        except nox.command.CommandFailed as error:
            found = {"outcome": results.FAILED, "reason": str(error)}
        found.update(_counts(report))
    if found["outcome"] == results.PASSED and not found["passed"]:
        found.update(outcome=results.NOT_RUN, reason="every test was skipped")
    return found


def _line(row: dict[str, Any]) -> str:
    """What became of a cell, in the words of the list at the end."""
    counts = ["%d %s" % (row[name], name) for name in ("passed", "failed", "skipped") if row.get(name)]
    shown = row["outcome"] + (": " + row["reason"] if "reason" in row else "")
    return "%s (%s)" % (shown, ", ".join(counts)) if counts else shown


def _install_releases(
    session: nox.Session, cell: dict[str, Any], folder: pathlib.Path, row: dict[str, Any]
) -> str:
    """Install the folders that the cell's tests use; the problem, if there is one."""
    name = cell.get("release")
    if name is None:
        return ""
    try:
        for needed in releases.needed(name):
            if needed == name:
                install.layer(session, name, folder, cell.get("instead", {}), anew=cell.get("newest", False))
            else:
                install.layer(session, needed, folder)
    except (nox.command.CommandFailed, OSError, ValueError) as error:
        return "%s could not be installed: %s" % (needed, error)
    row["frameworks"] = install.frameworks(folder / name)
    return ""


def _selection(cell: dict[str, Any]) -> list[str]:
    """What keeps to the tests that are about the cell's release, or about none."""
    if "release" in cell:
        return ["-m", "release(name=%r)" % cell["release"]]
    return ["-m", "not release"] if cell.get("without_release") else []


def _counts(report: pathlib.Path) -> dict[str, int]:
    """How many tests passed, failed and were skipped, by pytest's own report."""
    if not report.is_file():
        return {"passed": 0, "failed": 0, "skipped": 0}
    suite = next(iter(xml.etree.ElementTree.parse(report).getroot()))
    total, failures, errors, skipped = (
        int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")
    )
    return {"passed": total - failures - errors - skipped, "failed": failures + errors, "skipped": skipped}
