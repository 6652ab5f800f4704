"""The list of what the tests run on, and what is said of it: nothing is called tested that has not passed."""

from __future__ import annotations

import json
import re
import sys

import pytest

from matrix import results, table
from support import interpreters, releases

INSTALLED = ("requirements", "without_dependencies")
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


def test_each_release_has_a_cell_and_the_tests_without_one_too():
    assert {cell.get("release") for cell in CELLS} - {None} == set(releases.RELEASES)
    rest = [cell for cell in CELLS if cell.get("without_release")]
    assert [cell["run"] for cell in rest] == [["tests/live"]] * 2


def test_the_table_of_the_readme_is_that_of_the_outcomes():
    text = table.README.read_text(encoding="utf-8")
    shown = text.partition(table.BEGIN)[2].partition(table.END)[0]
    assert shown == table.table(results.rows()), "it is stale; refresh it: python tests/matrix/table.py"


def test_what_a_patch_calls_tested_is_in_a_cell():
    here = interpreters.plain_environment(PYTHONPATH=str(interpreters.PACKAGE_PARENT))
    listed = interpreters.run([sys.executable, "-m", "ddp_patches", "list", "--json"], here)
    entries = [*releases.RELEASES.values(), *releases.ENVIRONMENTS.values()]
    installed = [text for entry in entries for key in INSTALLED for text in entry.get(key, ())]
    pinned = {tuple(re.sub("^onedl-|-lite(?==)", "", text).split("==")) for text in installed if "==" in text}
    for entry in json.loads(listed.out)["patches"]:
        assert {(entry["package"], version) for version in entry["tested"]} <= pinned, entry["id"]


def row(outcome, **more):
    known = {"cell": "torch-1.12", "torch": "1.12.1", "wrapt": "1.14.0", "packaging": "20.0"}
    known.update(outcome=outcome, python="3.8.1", platform="Linux", date="2026-01-02")
    return {**known, **more}


@pytest.mark.parametrize("outcome", [results.FAILED, results.NOT_RUN])
def test_what_has_not_passed_is_not_in_the_table(outcome):
    passed = table.table([row(results.PASSED)])
    assert passed.startswith(table.HEAD) and "torch 1.12.1" in passed
    assert table.table([row(outcome), row(results.PASSED, cell="no longer listed")]) == table.HEAD


def test_an_outcome_replaces_the_one_before_of_the_same_versions(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "FILE", tmp_path / "results.jsonl")
    assert results.rows() == []
    for outcome, python in ((results.PASSED, "3.8.1"), (results.PASSED, "3.8.2"), (results.FAILED, "3.8.1")):
        results.keep(row(outcome, python=python))
    kept = {(kept["python"], kept["outcome"]) for kept in results.rows()}
    assert kept == {("3.8.2", results.PASSED), ("3.8.1", results.FAILED)}
    assert [json.loads(line) for line in results.FILE.read_text().splitlines()] == results.rows()
