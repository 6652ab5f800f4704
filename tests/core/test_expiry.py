"""When a patch is no longer needed: each has a test that fails on the day on which upstream is cured.

`nox -s newest` runs them on the newest releases. See tests/conftest.py for what such a failure says.
"""

from __future__ import annotations

import ast
import json
import pathlib
import sys

import pytest

from matrix import passed
from support import interpreters, releases

TESTS = pathlib.Path(__file__).parents[1]
HERE = interpreters.plain_environment(PYTHONPATH=str(interpreters.PACKAGE_PARENT))
MARKER = "upstream_fault"
NEVER = "never: "  # and why

# Prints the tests with the marker as pytest finds them: of which patch, and about which releases.
COLLECT = """
import json, sys, pytest

class Found:
    def pytest_collection_finish(self, session):
        for item in session.items:
            for mark in item.iter_markers("upstream_fault"):
                named = [release.kwargs["name"] for release in item.iter_markers("release")]
                print(json.dumps({"patch": mark.args[0], "test": item.nodeid, "releases": named}))

sys.exit(pytest.main(["--collect-only", "-qq", "-m", "upstream_fault", *sys.argv[1:]], plugins=[Found()]))
"""


@pytest.fixture(scope="module")
def patches():
    """What each patch says of itself, by its id; from a process of its own: tests declare patches here."""
    listed = interpreters.run([sys.executable, "-m", "ddp_patches", "list", "--json"], HERE)
    return {entry["id"]: entry for entry in json.loads(listed.out)["patches"]}


def marked(folder):
    """The files below a folder of tests that have the marker, with the patches that it names there."""
    found = {}
    for file in sorted((TESTS / folder).glob("test_*.py")):
        calls = [n for n in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(n, ast.Call)]
        calls = [call for call in calls if getattr(call.func, "attr", None) == MARKER]
        if calls:
            found[file] = [ast.literal_eval(call.args[0]) for call in calls]
    return found


def test_every_patch_has_a_test_of_its_fault_or_a_reason_why_it_stays(patches):
    """A test runs upstream's code, sees that the fault is still there, and fails when it is not."""
    named = [id for folder in ("live", "distributed") for ids in marked(folder).values() for id in ids]
    never = {id for id, patch in patches.items() if patch["remove_when"].startswith(NEVER)}
    assert sorted(named) == sorted(set(patches) - never), "one test each"
    for id in never:
        assert len(patches[id]["remove_when"]) > len(NEVER), id


def test_the_newest_release_is_among_those_on_which_a_fault_is_looked_for(patches):
    """`nox -s newest` puts the newest one into the place of a known release; torch's tests it runs all.

    Of a patch that has expired the last release with the fault is enough.
    """
    newest = [{"release": name} for name in releases.NEWEST]
    packages = {cell["release"]: {package for package, _ in passed.releases_of(cell)} for cell in newest}
    command = [sys.executable, "-c", COLLECT, *map(str, marked("live"))]
    collected = interpreters.run(command, HERE, TESTS.parent)
    answers = [json.loads(line) for line in collected.out.splitlines() if line.startswith("{")]
    assert collected.code == 0, collected.out + collected.err
    assert {answer["patch"] for answer in answers} == {id for ids in marked("live").values() for id in ids}
    for id in {answer["patch"] for answer in answers if not patches[answer["patch"]]["fixed_in"]}:
        of = {name for answer in answers if answer["patch"] == id for name in answer["releases"]}
        assert any(patches[id]["package"] in packages.get(name, ()) for name in of), id
    for ids in marked("distributed").values():
        assert {patches[id]["package"] for id in ids} == {"torch"}
