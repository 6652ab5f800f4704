"""The list of what the tests run on, and what is said of it: nothing is called tested that has not passed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from fingerprints import frameworks
from matrix import passed, results, table
from support import interpreters, releases

CELLS = releases.cells() + releases.newest_cells()


def test_names_are_used_once_and_lead_somewhere():
    names = [cell["name"] for cell in CELLS]
    assert len(set(names)) == len(names)
    for cell in CELLS:
        assert cell["environment"] in releases.ENVIRONMENTS
        assert cell["python"], cell
        paths = cell["everyday"] if isinstance(cell.get("everyday"), list) else []
        for path in [*cell["run"], *paths]:
            file, _, test = path.partition("::")
            assert (table.README.parent / file).exists(), path
            assert not test or "def %s(" % test in (table.README.parent / file).read_text(encoding="utf-8")
    assert set(releases.NEWEST) <= set(releases.RELEASES)
    for name in releases.RELEASES:
        assert set(releases.needed(name)) <= set(releases.RELEASES)


def test_every_test_is_in_a_cell():
    tests = table.README.parent / "tests"
    run = [table.README.parent / path for cell in releases.cells() for path in cell["run"]]
    files = list(tests.glob("*/test_*.py"))
    assert len(files) > 80
    assert not [file for file in files if file.parent not in run]


def test_each_release_has_a_cell_and_the_tests_without_one_too():
    assert {cell.get("release") for cell in CELLS} - {None} == set(releases.RELEASES)
    rest = [cell for cell in CELLS if cell.get("without_release")]
    assert [cell["run"] for cell in rest] == [["tests/live"]] * 2


def test_the_table_of_the_readme_is_that_of_the_outcomes():
    text = table.README.read_text(encoding="utf-8")
    shown = text.partition(table.BEGIN)[2].partition(table.END)[0]
    assert shown == table.table(results.rows()), "it is stale; refresh it: python tests/matrix/table.py"


def test_what_a_patch_calls_tested_is_in_a_cell():
    in_a_cell = {release for cell in releases.cells() for release in passed.releases_of(cell)}
    for package in frameworks.DISTRIBUTIONS:
        assert {(package, version) for version in frameworks.tested(package)} <= in_a_cell, package


def test_what_the_package_calls_tested_is_what_has_passed():
    """A release is called `tested` only if there is such an outcome."""
    stale = "it is stale; refresh it: python tests/matrix/passed.py"
    assert passed.FILE.read_text(encoding="utf-8") == passed.text(), stale
    here = interpreters.plain_environment(PYTHONPATH=str(interpreters.PACKAGE_PARENT))
    listed = interpreters.run([sys.executable, "-m", "ddp_patches", "list", "--json"], here)
    with_outcome = {release for row in results.rows() for release in passed.installed(row)}
    for entry in json.loads(listed.out)["patches"]:
        assert {(entry["package"], version) for version in entry["tested"]} <= with_outcome, entry["id"]


def test_a_release_has_passed_when_every_cell_about_it_has():
    """The cells of one release differ in what they run; the newest form of a fork is nobody's release."""
    kept = []

    def keep(outcome, cell, torch="2.13.0+cpu", **frameworks):
        names = {name.replace("_", "-"): version for name, version in frameworks.items()}
        kept.append(row(outcome, cell=cell, frameworks=names, torch=torch))

    keep(results.PASSED, "mmcv", mmcv="1.7.2")
    assert passed.passed(kept)["mmcv"] == []
    keep(results.PASSED, "mmdet/2.28.2", mmdet="2.28.2", mmcv="1.7.2")
    assert passed.passed(kept)["mmcv"] == ["1.7.2"]
    assert passed.passed(kept)["mmdet"] == []  # mmdet3d's cell has it as well
    keep(
        results.PASSED, "mmdet/onedl", onedl_mmdetection="3.5.1", onedl_mmengine="0.10.12", onedl_mmcv="2.3.6"
    )
    keep(results.PASSED, "newest ultralytics", ultralytics="8.4.190")
    assert passed.passed(kept)["mmdet"] == ["3.5.1"]
    assert passed.passed(kept)["mmengine"] == ["0.10.12"]
    assert (passed.passed(kept)["ultralytics"], passed.passed(kept)["torch"]) == ([], [])
    keep(results.PASSED, "torch-1.12", torch="1.12.1+cpu")
    keep(results.PASSED, "torch-2.13")
    assert passed.passed(kept)["torch"] == ["1.12.1"]  # `faults` and `live` are about 2.13.0 as well
    keep(results.PASSED, "faults")
    keep(results.PASSED, "live")
    assert passed.passed(kept)["torch"] == ["1.12.1", "2.13.0"]


@pytest.mark.parametrize("outcome, has", [(results.NOT_RUN, True), (results.FAILED, False)])
def test_a_failure_on_another_machine_takes_the_word_away(outcome, has):
    rows = [row(results.PASSED), row(outcome, python="3.9.1")]
    assert passed.passed(rows)["torch"] == (["1.12.1"] if has else [])
    assert ("torch 1.12.1" in table.table(rows)) == has


def row(outcome, **more):
    known = {"cell": "torch-1.12", "torch": "1.12.1", "wrapt": "1.14.0", "packaging": "20.0"}
    known.update(outcome=outcome, python="3.8.1", platform="Linux", date="2026-01-02")
    return {**known, **more}


@pytest.mark.parametrize("outcome", [results.FAILED, results.NOT_RUN])
def test_what_has_not_passed_is_not_in_the_table(outcome):
    passed = table.table([row(results.PASSED)])
    assert passed.startswith(table.HEAD) and "torch 1.12.1" in passed
    assert table.table([row(outcome), row(results.PASSED, cell="no longer listed")]) == table.HEAD


@pytest.mark.parametrize("outcome", [results.FAILED, results.NOT_RUN, None])
def test_the_table_has_the_releases_that_the_package_calls_tested(outcome):
    """One rule for both: a torch of which one cell has passed is not there as long as another one has not."""
    rows = [row(results.PASSED, cell=cell, torch="2.13.0+cpu") for cell in ("torch-2.13", "faults")]
    live = [row(outcome, cell="live", torch="2.13.0+cpu")] if outcome else []
    assert table.table([*rows, *live]) == table.HEAD
    assert (
        table.table([*rows, row(results.PASSED, cell="live", torch="2.13.0+cpu")]).count("torch 2.13.0") == 1
    )


def test_the_newest_releases_are_not_in_the_table_until_they_are_cells():
    for newest in releases.newest_cells():
        known = {"frameworks": {"ultralytics": "8.4.190"}} if newest.get("newest") else {}
        assert table.table([row(results.PASSED, cell=newest["name"], **known)]) == table.HEAD


def test_a_cell_without_releases_is_in_the_table_as_long_as_it_has_failed_nowhere():
    core = {"cell": "core-3.8", "outcome": results.PASSED, "python": "3.8.1", "platform": "Linux"}
    core.update(wrapt="1.14.0", packaging="20.0", date="2026-01-02")
    assert "no framework, no torch" in table.table([core])
    assert table.table([core, {**core, "python": "3.8.2", "outcome": results.FAILED}]) == table.HEAD


def test_the_last_outcome_on_the_same_versions_counts_and_the_others_are_kept(monkeypatch, tmp_path):
    """Each run of a cell appends its outcome."""
    monkeypatch.setattr(results, "FILE", tmp_path / "results.jsonl")
    assert results.rows() == []
    added = [(results.PASSED, "3.8.1"), (results.PASSED, "3.8.2"), (results.FAILED, "3.8.1")]
    for number, (outcome, python) in enumerate(added):
        results.keep(row(outcome, python=python, **({"commit": "1234567"} if number else {})))
    counted = {(kept["python"], kept["outcome"]) for kept in results.rows()}
    assert counted == {("3.8.2", results.PASSED), ("3.8.1", results.FAILED)}
    lines = [json.loads(line) for line in results.FILE.read_text().splitlines()]
    assert [(line["outcome"], line["python"]) for line in lines] == added


def test_an_outcome_names_the_commit_that_was_run(monkeypatch, tmp_path):
    """The outcomes themselves are no change of it: they are written after each cell."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "_WRITTEN", [tmp_path / "results.jsonl"])
    assert results.commit() == ""
    for name in ("code.py", "results.jsonl"):
        (tmp_path / name).write_text("")
    person = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid"]
    commit = [*person, "-c", "commit.gpgsign=false", "commit", "-q", "-m", "made up"]
    for command in (["init", "-q"], ["add", "."], commit):
        subprocess.run(["git", *command], cwd=str(tmp_path), check=True)
    name = results.commit()
    assert len(name) >= 7
    (tmp_path / "results.jsonl").write_text("an outcome")
    assert results.commit() == name
    (tmp_path / "code.py").write_text("a change")
    assert results.commit() == name + "-dirty"


@pytest.mark.parametrize(
    "given, pip, uv",
    [
        ({"PIP_FIND_LINKS": "/a /b"}, "/a /b", "/a,/b"),
        ({"UV_FIND_LINKS": "/a,/b"}, "/a /b", "/a,/b"),
        ({"PIP_FIND_LINKS": "/a", "UV_FIND_LINKS": "/b"}, "/a", "/b"),
        ({}, None, None),
    ],
)
def test_pip_and_uv_look_for_wheels_in_the_same_folders(given, pip, uv):
    """uv installs, pip downloads: each reads a variable of its own."""
    code = "import os; from matrix import machine; machine.prepare_environment(); "
    code += "print([os.environ.get(name) for name in ('PIP_FIND_LINKS', 'UV_FIND_LINKS')])"
    environment = interpreters.plain_environment(PYTHONPATH=str(table.README.parent / "tests"))
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        environment.pop(name, None)
    done = interpreters.run([sys.executable, "-c", code], {**environment, **given})
    assert done.out == "%s\n" % [pip, uv], done.err
