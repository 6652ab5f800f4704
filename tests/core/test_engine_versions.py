"""Which variant belongs to a version, and the verdict on a target: always an answer, never an exception."""

from __future__ import annotations

import contextlib
import functools
import sys
import types

import pytest
import wrapt

from ddp_patches.engine import catalogue, known, passed, versions
from ddp_patches.engine.fingerprint import Definition
from ddp_patches.engine.patch import Patch, Target, Variant
from fingerprints import packing

ODD_VERSIONS = [
    "8.5.0.dev1",
    "2.15.0a0+git3f2a1c",
    "2.7.1+cu118",
    "8.0.0-our-fork",
    "v8",
    "unknown",
    "",
    "2024.11.30.post1",
    None,
]


@pytest.mark.parametrize("version", ODD_VERSIONS)
@pytest.mark.parametrize("specifier", ["", ">=8.0,<8.4.100", "==2.7.1", "<1"])
def test_every_version_has_an_answer(version, specifier):
    assert versions.within(version, specifier) in (True, False)


@pytest.mark.parametrize(
    "version, specifier, inside",
    [
        ("2.7.1+cu118", "==2.7.1", True),
        ("2.7.1+cu118", "<=2.7.1", True),
        ("2.15.0a0+git3f2a1c", ">=2.15", True),  # a pre-release has the code of its release
        ("8.5.0.dev1", "<8.5", False),
        ("8.4.100rc1", ">=8.4.100", True),
        ("8.4.99", ">=8.4.100", False),
        # Of one that is no version, the release that it begins with.
        ("8.0.0-our-fork", ">=8.4", False),
        ("8.2.103-dirty", ">=8.3.200,<8.4.87", False),
        ("v8.2.103-3-g1234567", ">=8.0.58,<8.3.200", True),
        ("1.0.0rc6-12-gabcdef", "<1.1.0rc0", True),
        ("2.28.2rc-7 (our own)", "<3.0.0rc0", True),
        # Nothing to read, or the hash of a commit: newer than all known ones.
        ("main", ">=8.4", True),
        ("3f2a1c0-dirty", "<8.4", False),
        (None, "<8.4", False),
        ("0.9", "", True),
    ],
)
def test_ranges(version, specifier, inside):
    assert versions.within(version, specifier) is inside


@pytest.mark.parametrize("suffix", ["-our-fork", "-12-gabcdef", "-dirty", "+cu118", ".dev1"])
@pytest.mark.parametrize("package", sorted(known.read()))
def test_a_fork_has_the_variants_of_the_release_that_it_was_made_from(package, suffix):
    for patch in [each for each in catalogue.load() if each.package == package]:
        for release in known.looked_at(package):
            of_release = versions.variants_for(patch, release)
            assert versions.variants_for(patch, release + suffix) == of_release, (patch.id, release)


def of_package(version):
    module = types.ModuleType("framework")
    if version is not None:
        module.__version__ = version
    return module


@pytest.mark.parametrize("version, read", [("1.2", "1.2"), ((1, 2), "(1, 2)"), (None, None)])
def test_the_version_is_the_imported_modules(monkeypatch, version, read):
    """Not a distribution's: forks have other names, and several may be installed."""
    monkeypatch.setitem(sys.modules, "framework", of_package(version))
    assert versions.imported_version("framework") == read


def test_a_package_that_is_not_imported_has_no_version():
    assert versions.imported_version("not_imported_at_all") is None


@pytest.mark.parametrize("error", [RuntimeError, KeyError, ImportError])
def test_a_package_that_raises_when_it_is_asked_has_no_version(monkeypatch, error):
    """A lazy module's own __getattr__ may raise anything; status() and the user's import must not."""
    module = of_package(None)

    def raising(name):
        raise error(name)

    module.__getattr__ = raising
    monkeypatch.setitem(sys.modules, "framework", module)
    assert versions.imported_version("framework") is None


def work(amount, unit="h"):
    """Upstream's."""


def judged(
    original=work,
    parameters=("amount",),
    version="1.2.0",
    tested=(),
    fixed_in="",
    source=None,
    **kinds,
):
    patch = Patch("framework.work", "framework", "", "", "", "", "", tested, fixed_in)
    build = lambda original: original  # noqa: E731
    variant = Variant(Target.parse("framework:work"), "", parameters, build, **kinds)
    return versions.verdict(patch, variant, version, original, source)


@pytest.mark.parametrize("version", ODD_VERSIONS)
def test_every_version_has_a_verdict(version):
    assert judged(version=version)[0] == versions.COMPATIBLE


@pytest.mark.parametrize("version", ["1.2.0", "1.2.0+cu118"])
def test_tested_is_the_release_and_not_its_build(version):
    assert judged(version=version, tested=("1.1.0", "1.2.0"))[0] == versions.TESTED


def test_a_release_is_called_tested_once_the_patches_tests_have_passed_on_it(monkeypatch, tmp_path):
    """Of a package that the matrix does not have (somebody else's patch) there is the patch's word alone."""
    monkeypatch.setattr(passed, "PATH", str(tmp_path / "passed.json"))
    content = {'{"framework": ["1.2.0"]}': "compatible", '{"framework": ["1.1.0"]}': "tested", "{}": "tested"}
    for text, verdict in {**content, "not JSON": "compatible", "[]": "compatible"}.items():
        (tmp_path / "passed.json").write_text(text)
        passed.read.cache_clear()
        assert judged(version="1.1.0", tested=("1.1.0",))[0] == verdict, text
        assert judged(version="1.2.0", tested=("1.1.0",))[0] == "compatible", text
    passed.read.cache_clear()


@pytest.mark.parametrize("version", ["1.2.0.dev1", "1.2.0rc1", "1.2.1", None])
def test_other_versions_are_not_called_tested(version):
    assert judged(version=version, tested=("1.2.0",))[0] == versions.COMPATIBLE


def test_fixed_upstream():
    verdict, reason = judged(version="1.3.0+cu118", fixed_in=">=1.3")
    assert (verdict, reason) == (versions.FIXED, "upstream 1.3.0+cu118 no longer needs it (>=1.3)")
    assert judged(version="1.2.0", fixed_in=">=1.3")[0] == versions.COMPATIBLE
    assert judged(version="1.2.0-our-fork", fixed_in=">=1.3")[0] == versions.COMPATIBLE
    assert judged(version="1.3.0-our-fork", fixed_in=">=1.3")[0] == versions.FIXED


FIRST = Definition("first", "(amount, unit='h')", ("a", "b"))
SECOND = Definition("second", "(amount, unit='h')", tuple("abcdefghij"))
THIRD = Definition("third", "(amount, unit=None)", ("a", "c"))


@pytest.fixture
def releases(monkeypatch):
    """1.1.0 and 1.2.0 are known to have the same code, 1.3.0 other code, and 1.4.0 no such target."""
    found = [("1.1.0", FIRST), ("1.2.0", FIRST), ("1.3.0", SECOND), ("1.4.0", None)]
    part = packing.packed([(version, {"framework:work": definition}) for version, definition in found])
    monkeypatch.setattr(known, "read", lambda: {"framework": part})
    known.of_target.cache_clear()
    yield
    known.of_target.cache_clear()


@pytest.mark.parametrize(
    "version, source, verdict",
    [
        # When a patch is applied no source is read: the release decides.
        ("1.1.0", None, "tested"),
        ("1.2.0", None, "same"),
        ("1.2.0+cu118", None, "same"),
        ("1.3.0", None, "compatible"),
        ("1.5.0.dev1", None, "compatible"),
        (None, None, "compatible"),
        # Where it was read it decides, whatever the version says.
        ("1.1.0", FIRST, "tested"),
        ("1.1.0", THIRD, "compatible"),
        ("1.2.0", FIRST, "same"),
        ("1.2.0", SECOND, "compatible"),
        ("1.5.0.dev1", FIRST, "same"),
        ("our-fork", FIRST, "same"),
        (None, FIRST, "same"),
        (None, SECOND, "compatible"),
    ],
)
def test_code_that_our_tests_ran_is_the_same_in_another_release(releases, version, source, verdict):
    assert judged(version=version, tested=("1.1.0",), source=source)[0] == verdict


def test_the_same_code_under_another_variant_was_not_run(releases):
    patch = Patch("framework.work", "framework", "", "", "", "", "", ("1.1.0",))
    found = [
        versions.verdict(
            patch, Variant(Target.parse("framework:work"), ours, ("amount",), work), "1.2.0", work
        )
        for ours in ("", ">=1.1", ">=1.2")
    ]
    assert [verdict for verdict, _ in found] == ["same", "same", "compatible"]


def test_without_a_tested_release_nothing_is_the_same(releases):
    assert judged(version="1.2.0", source=FIRST)[0] == "compatible"


@pytest.mark.parametrize(
    "version, source, difference",
    [
        ("1.2.1", THIRD, "; since 1.2.0: was (amount, unit='h'), calls c, no longer calls b"),
        ("1.2.1", SECOND, "; since 1.2.0: calls c d e f g h and 2 more"),
        ("9.0", THIRD, "; since 1.3.0: was (amount, unit='h'), no longer calls b d e f g h and 2 more"),
        ("0.1", THIRD, "; since 1.1.0: was (amount, unit='h'), calls c, no longer calls b"),
        ("1.2.1", FIRST, ""),
        ("1.2.1", None, ""),
    ],
)
def test_other_code_is_compared_with_the_nearest_release(releases, version, source, difference):
    verdict, reason = judged(version=version, source=source)
    assert verdict == "compatible"
    assert reason == "not run by our tests on framework %s; the signature fits%s" % (version, difference)
    verdict, reason = judged(more, version=version, source=source)
    assert verdict == "changed"
    assert reason == "its signature (amount, unit, *, urgent) requires unit, urgent" + difference


def renamed(quantity, unit="h"): ...


def more(amount, unit, *, urgent): ...


def anything(*args, **keywords): ...


def optional_more(amount, unit="h", *, urgent=False): ...


async def coroutine(amount): ...


async def generator(amount):
    yield amount


class Class:
    def __init__(self, amount): ...


class Descriptors:
    @staticmethod
    def static(amount): ...

    @classmethod
    def by_class(cls, amount): ...

    @property
    def attribute(self): ...


class Decorator:
    def __init__(self, function):
        functools.update_wrapper(self, function)

    def __call__(self, *args, **keywords): ...


@wrapt.decorator
def upstreams_decorator(wrapped, instance, args, keywords):
    return wrapped(*args, **keywords)


def traced(function):
    """As somebody else's tool would: in a module of its own."""

    def wrapper(wrapped, instance, args, keywords):
        return wrapped(*args, **keywords)

    wrapper.__module__ = "tracer.wrappers"
    return wrapt.FunctionWrapper(function, wrapper)


class AnswersToAnything:
    def __getattr__(self, name):
        return AnswersToAnything()


def yielding(amount):
    yield amount


def keyword_only(*, amount): ...


def positional_only(amount, /): ...


def after_another(unit="h", amount=1): ...


def among_any(*amounts, amount): ...


def any_by_name(**keywords): ...


def any_after_another(unit="h", *args, **keywords): ...


def decorated_without_wraps(function):
    return lambda *args, **keywords: function(*args, **keywords)


@pytest.mark.parametrize(
    "original, verdict, reason",
    [
        (renamed, "changed", "its signature (quantity, unit='h') has no amount"),
        (more, "changed", "its signature (amount, unit, *, urgent) requires unit, urgent"),
        (Class, "changed", "it is no function but a class"),
        (coroutine, "changed", "it is a coroutine by now"),
        (generator, "changed", "it is a coroutine by now"),
        (functools.partial(work), "changed", "it is no plain function but of type partial"),
        (functools.lru_cache(work), "changed", "it is no plain function but of type _lru_cache_wrapper"),
        (vars(Descriptors)["static"], "changed", "it is no plain function but of type staticmethod"),
        (vars(Descriptors)["by_class"], "changed", "it is no plain function but of type classmethod"),
        (vars(Descriptors)["attribute"], "changed", "it is no plain function but of type property"),
        (len, "changed", "it is no plain function but of type builtin_function_or_method"),
        (None, "changed", "it is no plain function but of type NoneType"),
        # Objects that pretend to be the function that they wrap.
        (Decorator(work), "changed", "it is no plain function but of type Decorator"),
        (upstreams_decorator(work), "changed", "it is no plain function but of type FunctionWrapper"),
        (AnswersToAnything(), "changed", "it is no plain function but of type AnswersToAnything"),
        (functools.wraps(coroutine)(lambda *args: None), "changed", "it is a coroutine by now"),
        (traced(coroutine), "changed", "it is a coroutine by now"),
        (traced(work), "compatible", None),
        (traced(traced(work)), "compatible", None),
        (
            traced(upstreams_decorator(work)),
            "changed",
            "it is no plain function but of type FunctionWrapper",
        ),
        (functools.wraps(work)(lambda amount: None), "compatible", None),
        (yielding, "changed", "it is a generator by now"),
        (contextlib.contextmanager(yielding), "compatible", None),
        (contextlib.asynccontextmanager(generator), "changed", "it is a coroutine by now"),
        (keyword_only, "changed", "its signature (*, amount) does not begin with amount"),
        (among_any, "changed", "its signature (*amounts, amount) does not begin with amount"),
        (after_another, "changed", "its signature (unit='h', amount=1) does not begin with amount"),
        (any_by_name, "changed", "its signature (**keywords) does not begin with amount"),
        (
            any_after_another,
            "changed",
            "its signature (unit='h', *args, **keywords) does not begin with amount",
        ),
        (positional_only, "compatible", None),
        (7, "changed", "it is no plain function but of type int"),
        (optional_more, "compatible", None),
        (anything, "compatible", None),
        (decorated_without_wraps(work), "compatible", None),
        (functools.wraps(work)(anything), "compatible", None),
        (
            functools.wraps(renamed)(lambda *args: None),
            "changed",
            "its signature (quantity, unit='h') has no amount",
        ),
    ],
)
def test_what_upstream_may_have_done_to_the_target(original, verdict, reason):
    found = judged(original)
    assert found[0] == verdict
    assert reason is None or found[1] == reason


@pytest.mark.parametrize("original", [keyword_only, positional_only, after_another, among_any])
def test_a_replacement_that_binds_by_name_bears_any_order(original):
    assert judged(original, by_name=True)[0] == "compatible"
    assert judged(original, ("amount", "missing"), by_name=True)[0] == "changed"


def test_a_replacement_that_never_calls_upstreams_bears_any_shape():
    assert judged(functools.lru_cache(work), of_any_shape=True)[0] == "compatible"
    assert judged(functools.lru_cache(work), ("missing",), of_any_shape=True)[0] == "changed"


def test_by_position_the_order_counts():
    """Or upstream gets one value for the other, and says nothing."""
    assert judged(after_another, ("unit", "amount"))[0] == "compatible"
    verdict, reason = judged(after_another, ("amount", "unit"))
    assert verdict == "changed"
    assert reason == "its signature (unit='h', amount=1) does not begin with amount, unit"


def test_a_signature_that_cannot_be_read():
    def strange(amount): ...

    strange.__signature__ = "not a signature"
    verdict, reason = judged(strange)
    assert verdict == "changed" and reason.startswith("its signature cannot be read: ")


def method(self, amount): ...


def test_self_is_nobodys_parameter():
    assert judged(method)[0] == "compatible"
    assert judged(method, parameters=())[0] == "changed"


@pytest.mark.parametrize("text", ["framework.work", "framework:", ":work", ""])
def test_a_target_has_a_module_and_an_attribute(text):
    with pytest.raises(ValueError, match="module:attribute"):
        Target.parse(text)


def test_a_targets_older_homes():
    target = Target.parse("new.home|old.home:Class.method")
    assert (target.modules, target.attribute) == (("new.home", "old.home"), "Class.method")
    assert str(target) == "new.home|old.home:Class.method"
