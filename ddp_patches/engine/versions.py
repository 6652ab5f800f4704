"""Versions of what is really imported, which variant belongs to them, and the verdict on a target."""

from __future__ import annotations

import inspect
import sys
from typing import Any, List, Optional, Tuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from .patch import Patch, Variant

TESTED, COMPATIBLE, CHANGED, ABSENT, FIXED = "tested", "compatible", "changed", "absent", "fixed upstream"


def imported_version(package: str) -> Optional[str]:
    """``__version__`` of the imported package, or None. Distribution names are not asked: forks differ."""
    found = getattr(sys.modules.get(package), "__version__", None)
    return str(found) if found is not None else None


def within(version: Optional[str], specifier: str) -> bool:
    """Whether ``version`` is in ``specifier``; local parts (``+cu118``) and pre-releases count as theirs.

    A version that cannot be read (a fork's, a checkout's) is taken for newer than all known ones.
    """
    if not specifier:
        return True
    try:
        parsed = Version(version or "")
    except InvalidVersion:
        parsed = Version("9999")
    # A pre-release sorts before its release, but has the release's code: compare by the release.
    return SpecifierSet(specifier).contains(Version(parsed.base_version), prereleases=True)


def variants_for(patch: Patch, version: Optional[str]) -> List[Variant]:
    """The variants of ``patch`` whose range contains ``version``."""
    return [variant for variant in patch.variants if within(version, variant.versions)]


def verdict(patch: Patch, variant: Variant, version: Optional[str], original: Any) -> Tuple[str, str]:
    """The verdict on ``original``, upstream's object at the target, and the reason for it."""
    if patch.fixed_in and within(version, patch.fixed_in):
        return FIXED, "upstream %s no longer needs it (%s)" % (version, patch.fixed_in)
    problem = shape_problem(original) or signature_problem(original, variant.parameters)
    if problem:
        return CHANGED, problem
    if version is not None and version.partition("+")[0] in patch.tested:
        return TESTED, "run by our tests on %s %s" % (patch.package, version)
    shown = version or "of unknown version"
    return COMPATIBLE, "not run by our tests on %s %s; the signature fits" % (patch.package, shown)


def shape_problem(original: Any) -> Optional[str]:
    """Why ``original`` is no plain function, or None."""
    if inspect.isclass(original):
        return "it is no function but a class"
    if inspect.iscoroutinefunction(original) or inspect.isasyncgenfunction(original):
        return "it is a coroutine by now"
    if not inspect.isfunction(original):
        return "it is no plain function but of type %s" % type(original).__name__
    return None


def signature_problem(original: Any, parameters: Tuple[str, ...]) -> Optional[str]:
    """What keeps ``parameters`` from being the ones that ``original`` needs, or None."""
    try:
        live = inspect.signature(original).parameters
    except (TypeError, ValueError) as error:
        return "its signature cannot be read: %s" % error
    takes_any = any(p.kind is p.VAR_KEYWORD for p in live.values())
    missing = [name for name in parameters if name not in live and not takes_any]
    if missing:
        return "its signature %s has no %s" % (inspect.signature(original), ", ".join(missing))
    required = [
        name for name, p in live.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]  # fmt: skip
    added = [name for name in required if name not in parameters and name != "self"]
    if added:
        return "its signature %s requires %s" % (inspect.signature(original), ", ".join(added))
    return None
