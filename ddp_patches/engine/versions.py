"""Versions of what is really imported, which variant belongs to them, and the verdict on a target.

When a patch is applied the verdict comes from the live object and from what is known of its release. The
target's source is not read then: to parse a trainer or torch's ``distributed_c10d`` takes 35 to 60 ms, and
changes no decision. ``status`` reads it (:func:`verdict` with ``source``): only so is a release found to have
the same code that nobody has looked at, and an edited file not to be what it says.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any, Iterator, List, Optional, Set, Tuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from . import known, passed
from .fingerprint import Definition
from .patch import Patch, Variant

TESTED, SAME, COMPATIBLE = "tested", "same", "compatible"
CHANGED, ABSENT, FIXED = "changed", "absent", "fixed upstream"
# Those with which a patch is applied.
FITTING = (TESTED, SAME, COMPATIBLE)
# Those that a look at the target gives; the others come from its absence, or from the version alone.
FROM_THE_TARGET = FITTING + (CHANGED,)

_MOST_NAMES = 6  # calls that are named of a difference
_MOST_LAYERS = 50  # around a function; more than anybody has, and objects that answer to any name have no end


def imported_version(package: str) -> Optional[str]:
    """``__version__`` of the imported package, or None. Distribution names are not asked: forks differ."""
    try:
        found = getattr(sys.modules.get(package), "__version__", None)
        return str(found) if found is not None else None
    except Exception:  # of the module's own __getattr__
        return None


def within(version: Optional[str], specifier: str) -> bool:
    """Whether ``version`` is in ``specifier``; local parts (``+cu118``) and pre-releases count as theirs.

    A version that cannot be read (a checkout's) is taken for newer than all known ones.
    """
    if not specifier:
        return True
    parsed = known.parsed(version) or Version("9999")
    # A pre-release sorts before its release, but has the release's code: compare by the release.
    return SpecifierSet(specifier).contains(Version(parsed.base_version), prereleases=True)


def variants_for(patch: Patch, version: Optional[str]) -> List[Variant]:
    """The variants of ``patch`` whose range contains ``version``."""
    return [variant for variant in patch.variants if within(version, variant.versions)]


def tested_releases(patch: Patch) -> Tuple[str, ...]:
    """The releases of its package on which our tests ran a patch, and have passed.

    The patch names those that its tests are for, the outcomes of the matrix say which of them have passed.
    Of a package that the matrix does not know (somebody else's patch) there is the patch's word alone.
    """
    known_to_pass = passed.releases(patch.package)
    return tuple(r for r in patch.tested if known_to_pass is None or r in known_to_pass)


def verdict(
    patch: Patch, variant: Variant, version: Optional[str], original: Any, source: Optional[Definition] = None
) -> Tuple[str, str]:
    """The verdict on ``original``, upstream's object at the target, and the reason for it.

    ``source``: the target's definition in the installed file, where that was read.
    """
    if patch.fixed_in and within(version, patch.fixed_in):
        return FIXED, "upstream %s no longer needs it (%s)" % (version, patch.fixed_in)
    shown = "%s %s" % (patch.package, version or "of unknown version")
    problem = None if variant.of_any_shape else shape_problem(original)
    problem = problem or signature_problem(original, variant.parameters, variant.by_name)
    if problem:
        return CHANGED, problem + since(patch.package, str(variant.target), version, source)
    tested = tested_releases(patch)
    if known.release(version) in tested:
        if _is_as_published(patch, variant, version, source):
            return TESTED, "run by our tests on %s" % shown
        return COMPATIBLE, "this is not the code that %s was published with; the signature fits" % shown
    prints = {source.fingerprint} if source is not None else _prints(patch, variant, known.release(version))
    for release in reversed(tested):
        # Where another variant serves that release, it is that one which they ran.
        if prints and within(release, variant.versions) and prints <= _prints(patch, variant, release):
            reason = "not run by our tests on %s; its code is that of %s, on which they ran it"
            return SAME, reason % (shown, release)
    return COMPATIBLE, "not run by our tests on %s; the signature fits%s" % (
        shown, since(patch.package, str(variant.target), version, source)
    )  # fmt: skip


def _is_as_published(
    patch: Patch, variant: Variant, version: Optional[str], source: Optional[Definition]
) -> bool:
    """Whether a source that was read is that of its release, as far as that is known."""
    published = _prints(patch, variant, known.release(version)) if source is not None else set()
    return source is None or not published or source.fingerprint in published


def _prints(patch: Patch, variant: Variant, release: str) -> Set[str]:
    """The fingerprints that a target is known to have in a release."""
    return {d.fingerprint for d in known.in_release(patch.package, str(variant.target), release)}


def since(package: str, target: str, version: Optional[str], source: Optional[Definition]) -> str:
    """How the installed source differs from the nearest release that is known, as the end of a sentence.

    We know hashes, signatures and calls of that release, and not its source, which is not ours to ship.
    """
    nearest = known.nearest(package, target, version) if source is not None else None
    if source is None or nearest is None or nearest[1].fingerprint == source.fingerprint:
        return ""
    release, before = nearest
    differences = []
    if before.signature != source.signature:
        differences.append("was %s" % before.signature)
    gained = sorted(set(source.calls) - set(before.calls))
    lost = sorted(set(before.calls) - set(source.calls))
    differences += ["calls %s" % _listed(gained)] if gained else []
    differences += ["no longer calls %s" % _listed(lost)] if lost else []
    return "; since %s: %s" % (release, ", ".join(differences) or "other statements, the same calls")


def _listed(names: List[str]) -> str:
    more = len(names) - _MOST_NAMES
    return " ".join(names[:_MOST_NAMES] + (["and %d more" % more] if more > 0 else []))


def shape_problem(original: Any) -> Optional[str]:
    """Why ``original`` is no plain function, or None."""
    # By the type: wrapt's objects pretend to be of the class of what they wrap, also to isinstance().
    if issubclass(type(original), type):
        return "it is no function but a class"
    if any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in _layers(original)):
        return "it is a coroutine by now"
    upstreams = next((f for f in _layers(original) if not _is_wrapped_by_others(f)), None)
    if type(upstreams) is not types.FunctionType:
        return "it is no plain function but of type %s" % type(upstreams).__name__
    # Not of what it wraps: contextmanager makes a plain function of a generator.
    if inspect.isgeneratorfunction(upstreams):
        return "it is a generator by now"
    return None


def _layers(original: Any) -> Iterator[Any]:
    """``original`` and what it wraps, as ``functools.wraps`` and wrapt note it, from the outside in."""
    for _ in range(_MOST_LAYERS):
        yield original
        original = getattr(original, "__wrapped__", None)
        if original is None:
            return


def _is_wrapped_by_others(original: Any) -> bool:
    """Whether it is a transparent wrapper of wrapt's whose code is written in another package.

    Tracers put one around every function of interest; it is called as before, and so is our replacement.
    A decorator of upstream's own means that upstream has made something else of its function.
    """
    wrapper = getattr(original, "_self_wrapper", None)
    module = getattr(wrapper, "__module__", None) or ""
    home = getattr(original, "__module__", None) or ""
    return wrapper is not None and module.partition(".")[0] != home.partition(".")[0]


def signature_problem(original: Any, parameters: Tuple[str, ...], by_name: bool = False) -> Optional[str]:
    """What keeps ``parameters`` from being the ones that ``original`` needs, or None.

    Not ``by_name``: they are handed on by position, where another order would give upstream wrong values
    without a word.
    """
    try:
        live = inspect.signature(original).parameters
    except (TypeError, ValueError) as error:
        return "its signature cannot be read: %s" % error
    # What binds to the signature would not find them in one that takes anything.
    takes_any = not by_name and any(p.kind is p.VAR_KEYWORD for p in live.values())
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
    begins = [
        name for name, p in live.items()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and name != "self"
    ]  # fmt: skip
    wanted = [name for name in parameters if name != "self"]
    if any(p.kind is p.VAR_POSITIONAL for p in live.values()):
        # What a decorator without functools.wraps hands on as *args.
        begins += [name for name in wanted if name not in live]
    if not by_name and wanted != begins[: len(wanted)]:
        return "its signature %s does not begin with %s" % (inspect.signature(original), ", ".join(wanted))
    return None
