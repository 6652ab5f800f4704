"""What `nox -s matrix` does with cells that pass, fail, cannot be run, or are not asked for.

nox itself runs a copy of noxfile.py on made-up cells. Of nox only what makes environments and installs into
them is stood in for: the tests of the cells run in the environment of this test.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import sys
import types

import pytest

from matrix import passed, results, table
from support import interpreters

nox = pytest.importorskip("nox", reason="not in the environment of the minimums: see cells.json")

from matrix import outcomes  # noqa: E402  # imports nox

ROOT = pathlib.Path(__file__).parents[2]
HERE = "%d.%d" % sys.version_info[:2]
ABSENT = "3.99"

NOX = """
import os, sys
import nox, nox.sessions, nox.virtualenv

def create(runner):
    if runner.func.python == %r:
        raise nox.virtualenv.InterpreterNotFound(runner.func.python)
    os.makedirs(".nox", exist_ok=True)
    runner.venv = nox.virtualenv.PassthroughEnv()

def install(session, *arguments, stdout=None, **options):
    if "torch==0.1" in arguments:
        stdout.write("there is no torch 0.1")
        raise nox.command.CommandFailed("Returned code 1")

nox.sessions.SessionRunner._create_venv = create
nox.sessions.Session.install = install
sys.exit(nox.main())
"""

CELLS = {
    "environments": {
        "python": {"requirements": []},
        "newest": {"python": ABSENT, "requirements": []},
        "torch-1.12": {"python": ABSENT, "requirements": []},
        "torch-2.14": {"python": HERE, "requirements": [], "nccl": True},
        "torch-2.13": {
            "python": HERE,
            "requirements": ["torch==0.1"],
            "without_dependencies": ["torchvision==0.1"],
        },
    },
    "releases": {"ultralytics/8.4.190": {"why": "made up", "requirements": ["ultralytics==8.4.190"]}},
    "cells": [
        {"name": "first", "environment": "python", "python": HERE, "run": ["tests/made_up/test_passes.py"]},
        {"name": "broken", "environment": "python", "python": HERE, "run": ["tests/made_up/test_fails.py"]},
        {"name": "last", "environment": "python", "python": HERE, "run": ["tests/made_up/test_passes.py"]},
        {"name": "cuda", "environment": "torch-2.14", "run": ["tests/made_up/test_passes.py"]},
        {"name": "absent", "environment": "torch-1.12", "run": ["tests/made_up/test_passes.py"]},
    ],
    "newest": {},
}


@pytest.fixture
def project(tmp_path):
    """A copy of what `nox -s matrix` uses, with made-up cells and tests."""
    for name in ("tests/matrix", "ddp_patches"):
        shutil.copytree(str(ROOT / name), str(tmp_path / name), ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests" / "support").mkdir()
    for name in ("noxfile.py", "pyproject.toml", "tests/support/releases.py"):
        shutil.copy(str(ROOT / name), str(tmp_path / name))
    (tmp_path / "tests/matrix/cells.json").write_text(json.dumps(CELLS))
    (tmp_path / "tests/matrix/results.jsonl").unlink()
    (tmp_path / "README.md").write_text(table.BEGIN + table.END)
    (tmp_path / "tests" / "made_up").mkdir()
    for name in ("passes", "fails"):
        text = "def test_%s():\n    assert %r == 'passes'\n" % (name, name)
        (tmp_path / "tests/made_up" / ("test_%s.py" % name)).write_text(text)
    return tmp_path


def run(project, *arguments, **variables):
    """Run nox there; the exit code, the list at the end by the name of the cell, and all output."""
    environment = interpreters.plain_environment(**variables)
    for name in [name for name in environment if name.startswith(("PYTEST_", "NOX", "FORCE_COLOR"))]:
        if name not in variables:
            del environment[name]
    environment["PATH"] = str(pathlib.Path(sys.executable).parent) + os.pathsep + environment["PATH"]
    command = [sys.executable, "-c", NOX % ABSENT, *arguments]
    done = interpreters.run(command, environment, project, limit_s=120)
    lines = done.out.partition("\nCells:\n")[2].splitlines()
    listed = {line.split()[0]: line.split(None, 1)[1] for line in lines}
    assert len(listed) == len(lines), done.out
    return done.code, listed, done.out + done.err


def rows(project):
    lines = (project / "tests/matrix/results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_every_cell_is_run_whatever_becomes_of_the_others(project):
    """It goes on after a failure, lists every cell at the end, and keeps each outcome."""
    code, listed, said = run(project, "-s", "matrix")
    assert code == 1
    assert listed.keys() == {"first", "broken", "last", "cuda", "absent", "ultralytics/8.4.190"}, said
    assert listed["first"] == listed["last"] == "passed (1 passed)"
    assert listed["broken"].startswith("failed: ") and listed["broken"].endswith("(1 failed)")
    assert listed["absent"].startswith("not run: ") and ABSENT in listed["absent"]
    assert listed["ultralytics/8.4.190"].startswith(
        "not run: environment torch-2.13 could not be installed: "
    )
    assert listed["cuda"].startswith("not run: ")  # it has no torch at all
    assert "there is no torch 0.1" in listed["ultralytics/8.4.190"]
    kept = {row["cell"]: (row["outcome"], row.get("reason")) for row in rows(project)}
    assert kept.keys() == listed.keys()
    for name, (outcome, reason) in kept.items():
        assert listed[name].partition(" (1 ")[0] == ": ".join(filter(None, [outcome, reason]))
    table_of_readme = (project / "README.md").read_text(encoding="utf-8")
    assert table_of_readme.count("no framework, no torch") == 1  # both cells that pass, on the same versions


def test_an_interpreter_that_no_asked_for_cell_needs_may_be_missing(project):
    code, listed, said = run(project, "--sessions=matrix", "--", "first")
    assert (code, listed) == (0, {"first": "passed (1 passed)"}), said


@pytest.mark.parametrize(
    "way", [["--sessions", "matrix"], ["--sessions=matrix"], ["-e", "matrix(3.99, torch-1.12)"], "matrix"]
)
def test_a_cell_whose_session_does_not_start_is_listed_however_it_was_asked_for(project, way):
    options, variables = (way, {}) if isinstance(way, list) else ([], {"NOXSESSION": way})
    code, listed, said = run(project, *options, "--", "absent", **variables)
    assert code == 1, said
    assert list(listed) == ["absent"] and listed["absent"].startswith("not run: ")
    assert [(row["cell"], row["outcome"]) for row in rows(project)] == [("absent", "not run")]


def test_what_cannot_run_here_is_tolerated_on_request(project):
    words = ["absent", "ultralytics"]
    assert run(project, "-s", "matrix", "--", *words)[0] == 1
    code, listed, said = run(project, "-s", "matrix", "--", *words, "--tolerate-missing")
    assert code == 0, said
    assert [line.partition(":")[0] for line in listed.values()] == ["not run"] * 2
    assert run(project, "-s", "matrix", "--", "broken", "--tolerate-missing")[0] == 1


@pytest.mark.parametrize("nccl, outcome", [(True, "passed"), (False, "not run")])
def test_a_build_without_nccl_does_not_stand_for_one_with_it(project, nccl, outcome):
    """On a machine whose index or settings offer a CPU build, the cell would pass on that."""
    (project / "torch").mkdir()
    (project / "torch/__init__.py").write_text("")
    made_up = "is_available = lambda: True\nis_nccl_available = lambda: %s\n" % nccl
    (project / "torch/distributed.py").write_text(made_up)
    code, listed, said = run(project, "-s", "matrix", "--", "cuda")
    assert (code, listed["cuda"].partition(":")[0].partition(" (")[0]) == (int(not nccl), outcome), said
    assert nccl or "this torch is a build without NCCL" in listed["cuda"]
    assert [row["nccl"] for row in rows(project)] == [nccl]


def test_a_word_that_is_in_no_name_is_a_failure(project):
    code, listed, said = run(project, "-s", "matrix(%s, python)" % HERE, "--", "unknown")
    assert (code, listed) == (1, {})
    assert "no cell has one of these in its name: unknown" in said


def nothing(*arguments, **options):
    pass


def fails(*arguments, **options):
    raise nox.command.CommandFailed("Returned code 1")


def answers(*arguments, **options):
    return json.dumps({"python": "3.11.1"})


def breaks_its_report(session, *arguments, **options):
    pathlib.Path(arguments[-1]).write_text("<testsuites>")


@pytest.mark.parametrize(
    "query, run_tests, outcome",
    [
        (fails, nothing, results.NOT_RUN),
        (nothing, nothing, results.NOT_RUN),  # the environment's Python says nothing
        (answers, nothing, results.NOT_RUN),  # nor does pytest
        (answers, fails, results.FAILED),
        (answers, lambda *arguments, **options: 1 / 0, results.FAILED),
        (answers, breaks_its_report, results.FAILED),
    ],
)
def test_whatever_goes_wrong_is_the_outcome_of_that_cell(monkeypatch, tmp_path, query, run_tests, outcome):
    """It continues. What `run_cell` raised, the next cells were not run for."""
    kept = []
    monkeypatch.setattr(results, "keep", kept.append)
    monkeypatch.setattr(table, "main", nothing)
    monkeypatch.setattr(passed, "main", nothing)
    session = types.SimpleNamespace(run=query, python=HERE, cache_dir=tmp_path)
    assert outcomes.run_cell(session, CELLS["cells"][0], "", run_tests) == outcome
    assert [row["outcome"] for row in kept] == [outcome] and kept[0]["reason"]
    monkeypatch.setattr(passed, "main", fails)
    assert outcomes.run_cell(session, CELLS["cells"][0], "", run_tests) == results.FAILED
