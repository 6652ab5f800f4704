"""The releases that were looked at, and what each target was in them: the data beside this module.

``known.json`` is written by ``tests/fingerprints/collect.py`` from the archives on the package index. It
holds hashes, signatures and names that are called, and no source of upstream's. For each package::

    {"looked_at": "8.0.0 8.0.20 …",                        oldest first
     "targets": {"module:attribute": [
        {"fingerprint": …, "signature": …,
         "calls": "+name -name …",                          what it calls, as the change from the entry before
         "releases": "8.0.0..8.0.20 8.0.40"}]}}             ranges of releases that were looked at

A release that was looked at and is in no entry of a target does not have it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from typing import Any, Dict, List, Optional, Tuple

from packaging.version import InvalidVersion, Version

from .fingerprint import Definition

PATH = os.path.join(os.path.dirname(__file__), "known.json")

# With a dot at least: "3f2a1c0-dirty" is a commit, and no third release.
_RELEASE_AT_THE_START = re.compile(r"v?\d+(\.\d+)+((a|b|rc)\d+)?")


@dataclasses.dataclass(frozen=True)
class Known:
    """A definition and the releases that have it, oldest first."""

    definition: Definition
    releases: Tuple[str, ...]


@functools.lru_cache(maxsize=1)
def read() -> Dict[str, Any]:
    """The file's content; nothing is known where it cannot be read, which must stop nobody's training."""
    try:
        with open(PATH, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def looked_at(package: str) -> Tuple[str, ...]:
    """The releases of a package that were looked at, oldest first."""
    return tuple(read().get(package, {}).get("looked_at", "").split())


@functools.lru_cache(maxsize=None)
def of_target(package: str, target: str) -> Tuple[Known, ...]:
    """All definitions of a target, those of older releases first."""
    order = looked_at(package)
    calls: List[str] = []
    found = []
    for entry in read().get(package, {}).get("targets", {}).get(target, ()):
        for change in entry["calls"].split():
            if change[0] == "+":
                calls.append(change[1:])
            else:
                calls.remove(change[1:])
        definition = Definition(entry["fingerprint"], entry["signature"], tuple(sorted(calls)))
        found.append(Known(definition, _unfolded(entry["releases"], order)))
    return tuple(found)


def _unfolded(ranges: str, order: Tuple[str, ...]) -> Tuple[str, ...]:
    releases: List[str] = []
    for text in ranges.split():
        first, _, last = text.partition("..")
        releases += order[order.index(first) : order.index(last or first) + 1]
    return tuple(releases)


def release(version: Optional[str]) -> str:
    """The release that a version is a build of: without the local part, such as ``+cu118``."""
    return (version or "").partition("+")[0]


def parsed(version: Optional[str]) -> Optional[Version]:
    """The version, or the release that it begins with ("8.2.103-our-fork"); None where there is neither.

    Who asks takes None (a checkout without metadata, "main") for newer than all known releases.
    """
    try:
        return Version(version or "")
    except InvalidVersion:
        found = _RELEASE_AT_THE_START.match(version or "")
        return Version(found.group()) if found else None


def in_release(package: str, target: str, version: Optional[str]) -> List[Definition]:
    """What the target is in a release; nothing for one that was not looked at or does not have it.

    Several where distributions that call themselves by the same version differ.
    """
    name = release(version)
    return [known.definition for known in of_target(package, target) if name in known.releases]


def nearest(package: str, target: str, version: Optional[str]) -> Optional[Tuple[str, Definition]]:
    """The newest release that has the target and is not newer than ``version``, else the oldest one."""
    found = {name: known.definition for known in of_target(package, target) for name in known.releases}
    if not found:
        return None
    older = [name for name in found if not is_newer(name, version)]
    chosen = max(older, key=Version) if older else min(found, key=Version)
    return chosen, found[chosen]


def is_newer(known: str, version: Optional[str]) -> bool:
    """Whether a known release is newer than ``version``; never, where that cannot be read."""
    asked = parsed(release(version))
    return asked is not None and Version(known) > asked
