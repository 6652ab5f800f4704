"""What is shipped of the releases that were looked at: complete, exact at its bounds, read when asked."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest
from packaging.version import Version

from ddp_patches.engine import catalogue, definitions, known, versions
from ddp_patches.engine.fingerprint import Definition
from fingerprints import collect, frameworks, packing

FRAMEWORKS = sorted(frameworks.DISTRIBUTIONS)


def our_patches(package):
    """Those of a package, without what tests have declared."""
    home = "ddp_patches.patches."
    found = [patch for patch in catalogue.load() if patch.package == package]
    return [patch for patch in found if all(v.build.__module__.startswith(home) for v in patch.variants)]


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


def on_index(package):
    """By distribution, the releases on the index, oldest first."""
    index = collect.on_index()
    return {name: index[name].split() for name, _ in frameworks.DISTRIBUTIONS[package]}


def neighbours(package):
    """Pairs of releases of one distribution that follow each other among those that were looked at.

    Each with the releases between the two that were not.
    """
    for releases in on_index(package).values():
        looked = [n for n, release in enumerate(releases) if release in known.looked_at(package)]
        for first, last in zip(looked, looked[1:]):
            yield releases[first], releases[last], releases[first + 1 : last]


def fingerprints_in(package, release, target):
    return {definition.fingerprint for definition in known.in_release(package, target, release)}


@pytest.mark.parametrize("package", FRAMEWORKS)
def test_a_bound_has_nothing_between_its_two_sides(package):
    """Each is exact, since both sides of it were looked at and follow each other on the index."""
    pairs = list(neighbours(package))
    for target in frameworks.targets(package):
        for first, last, between in pairs:
            before, after = (fingerprints_in(package, release, target) for release in (first, last))
            assert before == after or not between, "%s changes somewhere in %s" % (target, between)


@pytest.mark.parametrize("package", FRAMEWORKS)
def test_nearly_all_releases_were_looked_at(package):
    """Of Ultralytics every twentieth at least, of the others each one; the first and the last."""
    lists = on_index(package).values()
    assert set(known.looked_at(package)) <= {release for releases in lists for release in releases}
    for releases in lists:
        assert {releases[0], releases[-1]} <= set(known.looked_at(package))
    for first, last, between in neighbours(package):
        assert len(between) < frameworks.STRIDES.get(package, 1), (first, last)


@pytest.mark.parametrize("package", FRAMEWORKS)
def test_a_variant_begins_where_the_code_changes(package):
    """A patch's own bound, too: moved by one release it would lie between two with the same code."""
    for patch in our_patches(package):
        targets = {str(variant.target) for variant in patch.variants}
        for first, last, between in neighbours(package):
            if versions.variants_for(patch, first) != versions.variants_for(patch, last):
                changes = [
                    t
                    for t in targets
                    if fingerprints_in(package, first, t) != fingerprints_in(package, last, t)
                ]
                assert changes and not between, (patch.id, first, last)


def function_with(signature):
    def function(): ...

    (node,) = ast.parse("def function%s: ..." % signature).body
    function.__signature__ = definitions.signature(node.args)
    return function


@pytest.mark.parametrize("package", FRAMEWORKS)
def test_each_release_that_has_a_target_has_one_variant_for_it_which_binds(package):
    """The whole table of what would be applied where, without running any of it."""
    judged = 0
    for patch in our_patches(package):
        for target in {str(variant.target) for variant in patch.variants}:
            for release in known.looked_at(package):
                found = [v for v in versions.variants_for(patch, release) if str(v.target) == target]
                for definition in known.in_release(package, target, release):
                    assert len(found) == 1, (patch.id, target, release)
                    (variant,) = found
                    function = function_with(definition.signature)
                    problem = versions.signature_problem(function, variant.parameters, variant.by_name)
                    assert problem is None, (patch.id, target, release, problem)
                    judged += 1
    assert judged >= len(known.looked_at(package)) / 2, "nearly nothing was compared"


@pytest.mark.parametrize("package", FRAMEWORKS)
def test_releases_are_in_order_and_none_is_known_that_was_not_looked_at(package):
    order = known.looked_at(package)
    assert list(order) == sorted(set(order), key=Version)
    for target in frameworks.targets(package):
        entries = known.of_target(package, target)
        assert len({entry.definition.fingerprint for entry in entries}) == len(entries)
        assert all(entry.releases and set(entry.releases) <= set(order) for entry in entries)


def test_the_file_is_as_the_script_writes_it():
    with open(known.PATH, encoding="utf-8") as file:
        assert file.read() == packing.as_text(known.read())
    assert collect.INDEX.read_text() == collect.index_text(collect.on_index())


def test_of_the_index_what_cannot_be_had_is_left_out(monkeypatch, tmp_path):
    """No bound can then be closer than the releases around it."""
    code = {"1.0": "a", "1.1": None, "1.2": "b", "1.3": "b", "1.4": "b"}
    monkeypatch.setattr(collect.package_index, "releases", lambda distribution: list(code))
    monkeypatch.setattr(frameworks, "DISTRIBUTIONS", {"frame": [("frame-headless", ">=1.0")]})
    monkeypatch.setattr(frameworks, "STRIDES", {"frame": 4})
    look_at = lambda package, distribution, release, notes: code[release] and (release, code[release])  # noqa: E731
    monkeypatch.setattr(collect, "look_at", look_at)
    index = {"other": "0.1"}
    assert [release for release, _ in collect.collect("frame", tmp_path, index)] == ["1.0", "1.2", "1.4"]
    assert index == {"other": "0.1", "frame-headless": "1.0 1.2 1.3 1.4"}


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
