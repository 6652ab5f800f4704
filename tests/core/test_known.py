"""What is shipped of the releases that were looked at: complete, exact at its bounds, read when asked."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from packaging.version import Version

from ddp_patches.engine import known
from ddp_patches.engine.fingerprint import Definition
from fingerprints import collect, frameworks, packing

FRAMEWORKS = sorted(frameworks.DISTRIBUTIONS)


def test_every_target_of_every_patch_is_known():
    for package in FRAMEWORKS:
        for target in frameworks.targets(package):
            assert known.of_target(package, target), "collect.py has not seen %s of %s" % (target, package)


def test_every_release_called_tested_was_looked_at():
    for package in FRAMEWORKS:
        assert frameworks.tested(package) <= set(known.looked_at(package)), package


def test_the_newest_release_and_those_our_tests_ran_are_among_the_samples():
    releases = ["1.0", "1.1", "1.2", "1.3", "1.4", "1.5"]
    assert collect.samples(releases, 3, {"1.1", "9.9"}) == [0, 1, 3, 5]
    assert collect.samples(releases, 1, ()) == [0, 1, 2, 3, 4, 5]
    assert collect.samples([], 3, {"1.1"}) == []


@pytest.mark.parametrize("package", FRAMEWORKS)
def test_a_bound_has_nothing_between_its_two_sides(package):
    """Releases are in order, and no definition is known of a release that was not looked at."""
    order = known.looked_at(package)
    assert list(order) == sorted(set(order), key=Version)
    for target in frameworks.targets(package):
        entries = known.of_target(package, target)
        assert len({entry.definition.fingerprint for entry in entries}) == len(entries)
        assert all(entry.releases and set(entry.releases) <= set(order) for entry in entries)


def test_the_file_is_as_the_script_writes_it():
    with open(known.PATH, encoding="utf-8") as file:
        assert file.read() == packing.as_text(known.read())


def definition(name, calls=()):
    return Definition(name, "(%s)" % name, tuple(calls))


RELEASES = [
    ("1.0", {"m:f": definition("a", ["x", "y"]), "m:g": definition("c")}),
    ("1.1", {"m:f": definition("a", ["x", "y"]), "m:g": None}),
    ("1.2", {"m:f": definition("b", ["y", "z"]), "m:g": None}),
    ("1.10", {"m:f": definition("a", ["x", "y"]), "m:g": definition("c")}),
    ("1.10", {"m:f": definition("b", ["y", "z"]), "m:g": definition("c")}),  # a fork of the same version
]


@pytest.fixture
def releases(monkeypatch):
    """Nothing is known but the releases above, of the package `frame`."""
    content = json.loads(packing.as_text({"frame": packing.packed(RELEASES)}))
    monkeypatch.setattr(known, "read", lambda: content)
    known.of_target.cache_clear()
    yield content
    known.of_target.cache_clear()


def test_what_is_written_is_what_is_read(releases):
    assert known.looked_at("frame") == ("1.0", "1.1", "1.2", "1.10")
    first, second = known.of_target("frame", "m:f")
    assert (first.definition, first.releases) == (RELEASES[0][1]["m:f"], ("1.0", "1.1", "1.10"))
    assert (second.definition, second.releases) == (RELEASES[2][1]["m:f"], ("1.2", "1.10"))
    assert [entry["releases"] for entry in releases["frame"]["targets"]["m:f"]] == [
        "1.0..1.1 1.10",
        "1.2..1.10",
    ]


def test_a_build_is_known_as_its_release(releases):
    assert [d.fingerprint for d in known.in_release("frame", "m:f", "1.1+cu118")] == ["a"]
    assert {d.fingerprint for d in known.in_release("frame", "m:f", "1.10")} == {"a", "b"}
    for version in ("1.3", "1.1.dev1", "", None, "odd"):
        assert known.in_release("frame", "m:f", version) == []


@pytest.mark.parametrize(
    "version, release",
    [
        ("1.1", "1.1"),
        ("1.1.5", "1.1"),
        ("1.2rc1", "1.1"),
        ("0.9", "1.0"),
        ("2.0+cpu", "1.10"),
        ("8.0.0-our-fork", "1.10"),
        ("", "1.10"),
        (None, "1.10"),
    ],
)
def test_the_nearest_release(releases, version, release):
    assert known.nearest("frame", "m:f", version)[0] == release


def test_of_what_is_unknown_nothing_is_said(releases):
    assert known.nearest("frame", "m:h", "1.0") is None
    assert known.of_target("other", "m:f") == () and known.looked_at("other") == ()


@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_a_file_that_cannot_be_read_stops_nobody(monkeypatch, tmp_path, content):
    path = tmp_path / "known.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setattr(known, "PATH", str(path))
    known.read.cache_clear()
    try:
        assert known.read() == {}
    finally:
        known.read.cache_clear()


def test_it_is_not_read_before_a_verdict_needs_it():
    program = """
        import sys, ddp_patches, ddp_patches.auto
        assert "ddp_patches.engine.known" not in sys.modules
        from ddp_patches.engine import known, control
        assert known.read.cache_info().misses == 0
    """
    lines = [line.strip() for line in program.splitlines()]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=60)


@pytest.mark.parametrize("changes", [[], [1], [19, 20, 21], [40], [7, 8, 55], list(range(1, 61))])
def test_bounds_are_found_by_halving(changes):
    """Of sixty-one releases every twentieth is looked at; `changes`: the first releases of other code."""
    looked = []

    def look(number):
        looked.append(number)
        return sum(change <= number for change in changes)

    collect.bounds(collect.samples(list(map(str, range(61))), 20, ()), look)
    seen = set(looked)
    assert {0, 20, 40, 60} <= seen
    for first, last in zip(sorted(seen), sorted(seen)[1:]):
        assert last - first == 1 or look(first) == look(last)
    for change in changes:
        assert {change - 1, change} <= seen, "the bound at %d is not exact" % change
    if not changes:
        assert len(seen) == 4
