"""Compare the newest release of each framework on the package index with what the patches know and need.

    PYTHONPATH=.:tests python -m fingerprints.drift [--tolerate-missing] [PACKAGE …]

Ends with 1 if a target has vanished or no longer has the signature that a patch needs, so that a maintainer
hears of it before users do, or if a release could not be looked at (unless that is tolerated). A target whose
code alone differs is listed.

One archive is downloaded for each distribution, 130 MB for torch and at most 15 MB for the others; a second
one where the newest cannot be had. Nothing is installed or imported.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import pathlib
import sys
import tempfile
from typing import Iterable, Iterator, Sequence

from packaging.specifiers import SpecifierSet

from ddp_patches.engine import catalogue, fingerprint, known, versions
from ddp_patches.engine.patch import Patch
from ddp_patches.inspection import forecast, installed, source
from fingerprints import frameworks, package_index

TRIES = 2  # releases of a distribution, from the newest on

CHANGED, DIFFERENT = "changed", "different code"


@dataclasses.dataclass(frozen=True)
class Drift:
    """A target that is not what it was, and the patch that relies on it."""

    kind: str
    patch: str
    target: str
    before: str  # the signature in the nearest release that is known
    now: str
    reason: str

    def __str__(self) -> str:
        shown = "%s: %s\n    relied on by %s\n    %s" % (self.kind, self.target, self.patch, self.reason)
        return shown + "\n    signature: was %s, is %s" % (self.before or "-", self.now or "-")


@contextlib.contextmanager
def importable(folder: pathlib.Path) -> Iterator[None]:
    """Let the packages of a folder be found, and nothing of the same name elsewhere."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        importlib.invalidate_caches()


def compare(patches: Iterable[Patch], package: str, folder: pathlib.Path, release: str) -> list[Drift]:
    """What is not as it was in the package that lies in a folder; empty if all is known.

    ``release`` is for a package whose source does not say its own version.
    """
    drifts = []
    with importable(folder):
        found = installed.find_all([package])[package]
        found = dataclasses.replace(found, version=found.version or release)
        for patch in patches:
            if patch.package == package:
                variants = versions.variants_for(patch, found.version)
                for target in dict.fromkeys(str(variant.target) for variant in variants):
                    drifts.append(_drift(patch, target, found))
    return [drift for drift in drifts if drift is not None]


def _drift(patch: Patch, target: str, package: installed.Package) -> Drift | None:
    # By the rules of the verdict that a user would get.
    row = forecast.row_of(patch, target, package, source.stand_in)
    before = known.nearest(patch.package, target, package.version)
    module, _, attribute = row["target"].partition(":")
    now = fingerprint.of_file(source.file_of(module), attribute)
    if row["verdict"] == versions.ABSENT and not _has_vanished(patch.package, target, package.version):
        return None
    if row["verdict"] in (versions.CHANGED, versions.ABSENT):
        kind = CHANGED
    elif now is None or before is None or now.fingerprint != before[1].fingerprint:
        kind = DIFFERENT
    else:
        return None
    was, is_now = before[1].signature if before else "", now.signature if now else ""
    return Drift(kind, patch.id, row["target"], was, is_now, row["reason"])


def _has_vanished(package: str, target: str, version: str) -> bool:
    """Whether the newest release that was looked at and is not newer than this one has the target."""
    older = [name for name in known.looked_at(package) if not known.is_newer(name, version)]
    return bool(older) and bool(known.in_release(package, target, older[-1]))


def newest(package: str, distribution: str, specifier: str, folder: pathlib.Path) -> str:
    """Put what is looked at of the newest release that can be had into a folder. Raises NotFound."""
    final = list(SpecifierSet(specifier).filter(package_index.releases(distribution), prereleases=False))
    for release in reversed(final[-TRIES:]):
        try:
            files = package_index.files(distribution, release, frameworks.file_names(package))
        except package_index.NotFound as error:
            print("the release before is compared, since there is no way to read %s" % error)
            continue
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return release
    raise package_index.NotFound("none of the newest releases of %s can be had" % distribution)


def report(title: str, drifts: Sequence[Drift]) -> bool:
    """Print what was found for a release; whether a maintainer has to do something."""
    print("%s: %s" % (title, "as known" if not drifts else ""))
    for drift in drifts:
        print("  " + str(drift))
    return any(drift.kind == CHANGED for drift in drifts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("packages", nargs="*", default=list(frameworks.DISTRIBUTIONS))
    text = "a release that cannot be had is no failure"
    parser.add_argument("--tolerate-missing", action="store_true", help=text)
    arguments = parser.parse_args()
    failed = False
    for package in arguments.packages:
        for distribution, specifier in frameworks.DISTRIBUTIONS[package]:
            with tempfile.TemporaryDirectory() as temporary:
                try:
                    release = newest(package, distribution, specifier, pathlib.Path(temporary))
                except package_index.NotFound as error:
                    print("%s: not compared: %s" % (distribution, error))
                    failed = failed or not arguments.tolerate_missing
                    continue
                drifts = compare(catalogue.load(), package, pathlib.Path(temporary), release)
                failed = report("%s %s" % (distribution, release), drifts) or failed
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
