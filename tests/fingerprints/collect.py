"""Write ddp_patches/engine/known.json: what each target is in each release, from the archives on the index.

And index.json beside this file, which is not shipped: the releases that there were to look at.

    PYTHONPATH=.:tests python -m fingerprints.collect [--notes FOLDER] [PACKAGE …]

Every release of a framework is looked at; of one with hundreds a sample, and those that our tests ran, and
between two that differ the bound is sought by halving, so that each bound is exact. What has been looked at
once is kept in the folder of notes: a run that was interrupted, or comes later, downloads only what is new.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import tempfile
from typing import Callable, Container, Iterable, Sequence

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ddp_patches.engine import known
from ddp_patches.engine.fingerprint import Definition
from fingerprints import frameworks, package_index, packing
from fingerprints.packing import Release

INDEX = pathlib.Path(__file__).with_name("index.json")


def bounds(samples: Iterable[int], look: Callable[[int], object]) -> None:
    """Call ``look`` for the samples, and for so many between them that two that differ are neighbours.

    Where two samples are equal, those between are taken to be.
    """
    ordered = sorted(set(samples))
    for sample in ordered:
        look(sample)
    for first, last in zip(ordered, ordered[1:]):
        _halve(first, last, look)


def _halve(first: int, last: int, look: Callable[[int], object]) -> None:
    if last - first > 1 and look(first) != look(last):
        middle = (first + last) // 2
        look(middle)
        _halve(first, middle, look)
        _halve(middle, last, look)


def look_at(package: str, distribution: str, release: str, notes: pathlib.Path) -> tuple[str, Release] | None:
    """The version that a release gives itself, and its targets; None where it cannot be had."""
    note = notes / ("%s-%s.json" % (distribution, release))
    names = frameworks.targets(package)
    if note.exists():
        written = json.loads(note.read_text())
        if sorted(written["targets"]) == names:
            return written["version"], {
                target: Definition(**{**found, "calls": tuple(found["calls"])}) if found else None
                for target, found in written["targets"].items()
            }
    try:
        files = package_index.files(distribution, release, frameworks.file_names(package))
    except package_index.NotFound as error:
        print("not looked at:", error)
        return None
    version = frameworks.version(package, files, release)
    found = {target: frameworks.definition(target, files) for target in names}
    written = {target: dataclasses.asdict(each) if each else None for target, each in found.items()}
    note.write_text(json.dumps({"version": version, "targets": written}))
    print(distribution, release, "gives itself", version, flush=True)
    return version, found


def samples(releases: Sequence[str], stride: int, wanted: Container[str]) -> list[int]:
    """Every so many of the releases, the newest one, and those that are ``wanted`` in any case."""
    last = len(releases) - 1
    return [n for n, release in enumerate(releases) if n % stride == 0 or n == last or release in wanted]


def collect(package: str, notes: pathlib.Path, index: dict[str, str]) -> list[tuple[str, Release]]:
    """The releases of a package that were looked at, oldest first, those of its forks among them.

    ``index``, by distribution, gets all releases that there are, without those that cannot be had.
    """
    found: list[tuple[str, Release]] = []
    for distribution, specifier in frameworks.DISTRIBUTIONS[package]:
        wanted = SpecifierSet(specifier)
        releases = [r for r in package_index.releases(distribution) if wanted.contains(r, prereleases=True)]
        looked: dict[int, tuple[str, Release] | None] = {}

        def look(number: int, distribution=distribution, releases=releases, looked=looked) -> Release | None:
            if number not in looked:
                looked[number] = look_at(package, distribution, releases[number], notes)
            answer = looked[number]
            return answer[1] if answer else None

        bounds(samples(releases, frameworks.STRIDES.get(package, 1), frameworks.tested(package)), look)
        found += [looked[number] for number in sorted(looked) if looked[number] is not None]
        to_be_had = [release for n, release in enumerate(releases) if looked.get(n, True) is not None]
        index[distribution] = " ".join(to_be_had)
    return sorted(found, key=lambda entry: Version(entry[0]))


def on_index() -> dict[str, str]:
    """By distribution, the releases on the index when it was last asked, oldest first."""
    return json.loads(INDEX.read_text(encoding="utf-8"))


def index_text(index: dict[str, str]) -> str:
    return json.dumps(index, indent=1, sort_keys=True) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("packages", nargs="*", default=list(frameworks.DISTRIBUTIONS))
    parser.add_argument("--notes", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        notes = arguments.notes or pathlib.Path(temporary)
        notes.mkdir(parents=True, exist_ok=True)
        content, index = dict(known.read()), on_index()
        for package in arguments.packages:
            content[package] = packing.packed(collect(package, notes, index))
        pathlib.Path(known.PATH).write_text(packing.as_text(content), encoding="utf-8")
        INDEX.write_text(index_text(index), encoding="utf-8")


if __name__ == "__main__":
    main()
