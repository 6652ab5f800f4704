"""Putting a function in and taking it out: promises 4 (every holder), 5 (undo), 6 (plain functions)."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
import types

import pytest

from ddp_patches.engine import apply


@pytest.fixture
def module(monkeypatch):
    """Makes modules that are in sys.modules for the length of the test."""

    def make(name, kind=types.ModuleType, **names):
        made = kind(name)
        types.ModuleType.__dict__["__dict__"].__get__(made).update(names)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return make


def upstream(amount, *, unit="h"):
    """Upstream's own words."""
    return "upstream", amount, unit


def replacement_of(original, owner=None, name="upstream", place=""):
    def replacement(*args, **keywords):
        return ("ours", *original(*args, **keywords))

    return apply.Replacement(original, apply.dress(replacement, original, "some.patch"), owner, name, place)


@pytest.fixture
def function():
    """A function that only the test holds."""

    def work():
        return "upstream"

    return work


def test_every_module_that_holds_the_function_is_reached_under_any_name(module, function):
    home = module("home", work=function)
    user = module("user", work=function, labour=function, other=len)
    placed = replacement_of(function)
    placed.install()
    assert placed.holders == 3
    assert home.work is user.work is user.labour is placed.function
    assert user.other is len


def test_removal_reaches_those_that_imported_the_replacement_since(module, function):
    home = module("home", work=function)
    before = dict(vars(home))
    placed = replacement_of(function)
    placed.install()
    late = module("late", task=home.work)
    placed.remove()
    assert dict(vars(home)) == before and list(vars(home)) == list(before)
    assert late.task is function


@pytest.mark.parametrize("first_out", [0, 1])
def test_two_patches_of_one_function(module, function, first_out):
    """Last in, first out restores; in the other order nothing of upstream's is lost."""
    home = module("home", work=function)
    inner = replacement_of(function)
    inner.install()
    outer = replacement_of(home.work)
    outer.install()
    assert home.work is outer.function
    for placed in [(outer, inner), (inner, outer)][first_out]:
        placed.remove()
    assert home.work is (function if first_out == 0 else inner.function)


def test_what_somebody_wrapped_around_ours_stays(module, function):
    home, user = module("home", work=function), module("user", work=function)
    placed = replacement_of(function, place="home:work")
    placed.install()

    @functools.wraps(home.work)
    def wrapper():
        return placed.function()

    home.work = wrapper
    assert placed.is_reached()
    placed.remove()
    assert home.work is wrapper and user.work is function


class Lazy(types.ModuleType):
    """As apipkg, six and lazy importers have them: any look at it loads what it stands for."""

    def _loaded(self, *_):
        raise AssertionError("a lazy module was triggered")

    __getattribute__ = __getattr__ = __dir__ = _loaded
    __dict__ = property(_loaded)
    __class__ = property(_loaded)


def test_lazy_modules_are_not_triggered(module, function):
    lazy = module("lazy", Lazy, work=function)
    placed = replacement_of(function)
    placed.install()
    assert types.ModuleType.__dict__["__dict__"].__get__(lazy)["work"] is placed.function
    placed.remove()
    assert types.ModuleType.__dict__["__dict__"].__get__(lazy)["work"] is function


def test_modules_of_lazyloader_are_not_loaded(module, function, tmp_path, monkeypatch):
    (tmp_path / "sleeper.py").write_text("raise AssertionError('loaded')\n")
    spec = importlib.util.spec_from_file_location("sleeper", tmp_path / "sleeper.py")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sleeper = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "sleeper", sleeper)
    spec.loader.exec_module(sleeper)
    placed = replacement_of(function)
    placed.install()
    placed.remove()
    assert type(sleeper).__name__ == "_LazyModule"
    del sys.modules["sleeper"]


class NoModule:
    __slots__ = ()

    def __getattribute__(self, name):
        raise RuntimeError(name)


def test_entries_that_are_no_modules_are_left_alone(module, monkeypatch, function):
    home = module("home", work=function)
    space = types.SimpleNamespace(work=function)
    for number, entry in enumerate([None, 7, NoModule(), NoModule, space]):
        monkeypatch.setitem(sys.modules, "entry%d" % number, entry)
    monkeypatch.setitem(sys.modules, 7, home)  # nor need a key be a string
    placed = replacement_of(function)
    placed.install()
    assert home.work is placed.function and space.work is function


class Registry:
    """As OpenMMLab's: what was registered is in a dict of the registry."""

    def __init__(self, *registered):
        self.__dict__["table"] = {"registered %d" % number: each for number, each in enumerate(registered)}

    def __getattr__(self, name):
        raise AssertionError("asked for %s" % name)


def test_a_registry_holds_ours_and_then_upstreams_again(module, function, monkeypatch):
    """Promise 4: OpenMMLab finds functions through registries. Counted once, whoever holds the registry."""
    monkeypatch.setitem(apply._tables, "registries:Registry", "table")
    module("registries", Registry=Registry)
    registry = Registry(function, print, function)
    module("framework.builder", HOOKS=registry, ALIAS=registry)
    table = vars(registry)["table"]
    before = dict(table)

    def ours():
        pass

    replaced = apply.Replacement(function, ours, None, "work")
    replaced.install()
    assert list(table.values()) == [ours, print, ours]
    in_modules = sum(each is ours for module in list(sys.modules.values()) for each in vars(module).values())
    assert replaced.holders == 2 + in_modules
    replaced.remove()
    assert table == before


def test_our_own_modules_keep_upstreams_function(module, function):
    own = module("ddp_patches.made_up", work=function)
    replacement_of(function).install()
    assert own.work is function


class Upper:
    def work(self):
        return "upstream"


class Lower(Upper):
    def work(self):
        return "lower's own"


def test_a_method_is_replaced_in_its_class_and_not_in_subclasses():
    module = sys.modules[__name__]
    owner, name, original = apply.find(module, "Upper.work")
    before = dict(vars(Upper)), dict(vars(Lower))
    placed = replacement_of(original, owner, name, __name__ + ":Upper.work")
    placed.install()
    try:
        assert Upper().work() == ("ours", *"upstream")
        assert Lower().work() == "lower's own"
        assert placed.is_reached()
    finally:
        placed.remove()
    assert (dict(vars(Upper)), dict(vars(Lower))) == before


def test_a_method_that_somebody_replaced_since_is_not_taken_away(monkeypatch):
    placed = replacement_of(vars(Upper)["work"], Upper, "work")
    monkeypatch.setattr(Upper, "work", placed.function)
    monkeypatch.setattr(Upper, "work", other := lambda self: "another tool's")
    placed.remove()
    assert vars(Upper)["work"] is other


@pytest.mark.parametrize(
    "attribute, reason",
    [
        ("gone", "home has no gone"),
        ("Gone.work", "home has no class Gone"),
        ("Upper.gone", "home has no Upper.gone"),
        ("work.inner", "home has no class work"),
        (
            "Lower.__init__",
            "home has no Lower.__init__",
        ),  # inherited: the base class would be patched for all
    ],
)
def test_what_is_absent_is_said_by_name(module, function, attribute, reason):
    home = module("home", work=function, Upper=Upper, Lower=Lower)
    with pytest.raises(apply.Absent) as absent:
        apply.find(home, attribute)
    assert str(absent.value) == reason


def test_a_replacement_looks_like_upstreams_function():
    """Plain, with upstream's name, signature and documentation, and without a trace on upstream's."""
    before = dict(vars(upstream))
    function = replacement_of(upstream).function
    assert type(function) is types.FunctionType
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(function, name) == getattr(upstream, name)
    assert inspect.signature(function) == inspect.signature(upstream)
    assert function(2) == ("ours", "upstream", 2, "h")
    assert vars(upstream) == before


def test_a_target_that_was_reloaded_is_not_reached(module, function):
    home = module("home", work=function)
    placed = replacement_of(function, place="home:work")
    placed.install()
    assert placed.is_reached()
    home.work = lambda: "upstream's, from the reload"
    assert not placed.is_reached()
    del home.work
    assert not placed.is_reached()
    del sys.modules["home"]
    assert not placed.is_reached()


def test_holders_that_no_sweep_can_reach_are_named(module, function):
    """And only those: neither modules, nor our own replacement, which holds upstream's function itself."""
    module("home", work=function)
    placed = replacement_of(function)
    placed.install()
    assert apply.unreachable_holders([placed]) == [[]]

    def taking(callback=function):
        def inside():
            return held()

        held = callback
        return inside

    class Body:
        task = function

    class Ours:
        task = placed.function

    other = replacement_of(upstream)  # a parameter of the test below holds it
    keep = functools.partial(function), taking(function), Body, Ours
    found, others = apply.unreachable_holders([placed, other])
    assert others == ["a functools.partial"]
    assert found == [
        "a functools.partial",
        "the class %s.%s" % (__name__, Body.__qualname__),
        "the closure of %s.%s" % (__name__, keep[1].__qualname__),
    ]


@pytest.mark.parametrize("built", [upstream, functools.partial(upstream), None, Upper().work, Upper])
def test_what_would_not_travel_is_refused(built):
    with pytest.raises(TypeError, match="must build a plain function of its own"):
        apply.dress(built, upstream, "some.patch")
    assert "__wrapped__" not in vars(upstream)
