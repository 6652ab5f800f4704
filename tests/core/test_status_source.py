"""What `status` says of a target before anything is imported must be what the engine says after the import.

The first test guards promise 3 (truth) for every shape that upstream may give a target: it reads a module,
then imports the same module, and compares the two verdicts and their reasons.
"""

from __future__ import annotations

import importlib
import sys

import pytest

from ddp_patches.engine import apply, versions
from ddp_patches.engine.patch import Patch, Target, Variant
from ddp_patches.inspection import source
from support import made_up

SHAPES = """
    import asyncio, contextlib, functools, wrapt
    from typing import TYPE_CHECKING, overload
    from .other import imported, imported_decorator, renamed as alias
    from .stars import *
    from . import other

    if TYPE_CHECKING:
        def only_for_checkers(local_rank): ...

    def plain(local_rank): ...
    def without(rank): ...
    def needs_more(local_rank, world_size): ...
    def has_default(local_rank, world_size=None): ...
    def takes_any(*args, **kwargs): ...
    def keyword_only(*, local_rank): ...
    def keyword_needed(local_rank, *, backend): ...
    def keyword_default(local_rank, *, backend="nccl"): ...
    async def coroutine(local_rank): ...

    @contextlib.contextmanager
    def context(local_rank):
        yield

    @contextlib.asynccontextmanager
    async def async_context(local_rank):
        yield

    @functools.lru_cache(maxsize=None)
    def cached(local_rank): ...

    def wraps(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)
        return wrapper

    @wraps
    def decorated(local_rank): ...

    @wraps
    async def decorated_coroutine(local_rank): ...

    class Decorator:
        def __init__(self, function):
            functools.update_wrapper(self, function)
        def __call__(self, *args, **kwargs): ...

    @Decorator
    def instance(local_rank): ...

    class Factory:
        def __new__(cls, function):
            return function
        def __call__(self): ...

    @Factory
    def handed_out(local_rank): ...

    @wrapt.decorator
    def by_wrapt(wrapped, instance, args, kwargs):
        return wrapped(*args, **kwargs)

    def with_words(words):
        @wrapt.decorator
        def wrapper(wrapped, instance, args, kwargs):
            return wrapped(*args, **kwargs)
        return wrapper

    @by_wrapt
    def proxy(local_rank): ...

    @with_words("deprecated")
    def proxy_with_words(local_rank): ...

    @imported_decorator
    def proxy_from_elsewhere(local_rank): ...

    @other.imported_decorator
    def proxy_by_module(local_rank): ...

    def generator(local_rank):
        if local_rank:
            yield

    def with_generator_inside(local_rank):
        def inside():
            yield
        return inside

    def positional_only(local_rank, /): ...
    def second(group=None, local_rank=0): ...
    def second_needed(group, local_rank): ...

    @overload
    def overloaded(local_rank: int): ...
    @overload
    def overloaded(local_rank: str, extra): ...
    def overloaded(local_rank): ...

    def defined_twice(rank): ...
    def defined_twice(local_rank): ...

    try:
        from .missing import fallback
    except ImportError:
        def fallback(local_rank): ...

    try:
        def tried(local_rank): ...
    except ImportError:
        tried = None

    if hasattr(functools, "wraps"):
        def conditional(local_rank): ...
    else:
        conditional = None

    second_name = plain

    class Trainer:
        def method(self, local_rank): ...
        def other(self): ...
        @staticmethod
        def static(local_rank): ...
        @classmethod
        def of_class(cls, local_rank): ...
        @property
        def prop(self): ...
        class Inner:
            def method(self, local_rank): ...

    class Derived(Trainer):
        def own(self, local_rank): ...
"""

OTHER = """
    from wrapt import decorator

    def imported(local_rank): ...
    def renamed(rank): ...

    @decorator
    def imported_decorator(wrapped, instance, args, kwargs):
        return wrapped(*args, **kwargs)
"""

ATTRIBUTES = [
    "plain",
    "without",
    "needs_more",
    "has_default",
    "takes_any",
    "keyword_only",
    "keyword_needed",
    "keyword_default",
    "coroutine",
    "context",
    "async_context",
    "cached",
    "decorated",
    "decorated_coroutine",
    "instance",
    "handed_out",
    "proxy",
    "proxy_with_words",
    "proxy_from_elsewhere",
    "proxy_by_module",
    "generator",
    "with_generator_inside",
    "positional_only",
    "second",
    "second_needed",
    "overloaded",
    "defined_twice",
    "tried",
    "conditional",
    "second_name",
    "imported",
    "alias",
    "starred",
    "Trainer",
    "nothing",
    "only_for_checkers",
    "Trainer.method",
    "Trainer.other",
    "Trainer.static",
    "Trainer.of_class",
    "Trainer.prop",
    "Trainer.nothing",
    "Trainer.Inner.method",
    "Derived.own",
    "Derived.method",
    "Nothing.method",
    "plain.method",
]

PATCH = Patch("a.b", "shapes", "", "", "", "", "", tested=("1.0",))


@pytest.fixture
def shapes(tmp_path, monkeypatch):
    """A package of all shapes, importable and not imported; forgotten afterwards."""
    files = {
        "shapes/__init__.py": "from .late import below\n",
        "shapes/late.py": "def below(local_rank): ...\n",
        "shapes/work.py": SHAPES,
        "shapes/other.py": OTHER,
        "shapes/stars.py": "def starred(local_rank): ...\n",
        "shapes/computed.py": "import functools\nmade = functools.partial(print)\nitem = {}['x']\n",
        "shapes/broken.py": "def f(:\n",
        "shapes/circle.py": "from .circle import again as again\n",
        "shapes/compiled.abi3.so": "",
        "shapes/space/deep.py": "def below(local_rank): ...\n",
    }
    made_up.write_files(tmp_path, files)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield "shapes"
    for name in [name for name in sys.modules if name.partition(".")[0] == "shapes"]:
        del sys.modules[name]


def judged(find):
    """(verdict, reason) on what `find` returns; an absent target is judged as the engine does it."""
    variant = Variant(Target(("shapes.work",), ""), "", ("local_rank",), lambda original: original)
    try:
        return versions.verdict(PATCH, variant, "1.0", find())
    except apply.Absent as error:
        return versions.ABSENT, str(error)


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_verdict_before_the_import_is_the_verdict_after_it(shapes, attribute):
    before = judged(lambda: source.stand_in("shapes.work", attribute))
    assert not any(name.startswith("shapes") for name in sys.modules), "reading must not import"
    module = importlib.import_module("shapes.work")
    after = judged(lambda: apply.find(module, attribute)[2])
    assert before == after


def test_the_shapes_get_different_verdicts(shapes):
    """Else the comparison above could be of nothing with nothing."""
    found = {name: judged(lambda name=name: source.stand_in("shapes.work", name))[0] for name in ATTRIBUTES}
    assert found["plain"] == versions.TESTED
    assert found["needs_more"] == versions.CHANGED
    assert found["cached"] == versions.CHANGED
    assert found["nothing"] == versions.ABSENT
    changed = {name for name, verdict in found.items() if verdict == versions.CHANGED}
    assert {"async_context", "decorated_coroutine", "instance", "generator", "keyword_only"} <= changed
    assert {"proxy", "proxy_with_words", "proxy_from_elsewhere", "proxy_by_module", "second"} <= changed
    assert {"context", "handed_out", "positional_only", "with_generator_inside"} <= {
        name for name, verdict in found.items() if verdict == versions.TESTED
    }
    assert {"context", "defined_twice", "overloaded", "imported", "starred", "Trainer.method"} <= {
        name for name, verdict in found.items() if verdict == versions.TESTED
    }


def test_reexports_of_a_package_are_followed(shapes):
    assert judged(lambda: source.stand_in("shapes", "below"))[0] == versions.TESTED
    assert judged(lambda: source.stand_in("shapes.space.deep", "below"))[0] == versions.TESTED


@pytest.mark.parametrize(
    "module, attribute",
    [
        ("shapes.computed", "made"),
        ("shapes.broken", "f"),
        ("shapes.circle", "again"),
        ("shapes.compiled", "f"),
    ],
)
def test_what_the_source_cannot_tell_is_not_guessed(shapes, module, attribute):
    with pytest.raises(source.Untold):
        source.stand_in(module, attribute)


@pytest.mark.parametrize("module", ["shapes.nowhere", "shapes.work.deeper", "not_installed_anywhere.x"])
def test_a_module_that_is_not_there_is_absent(shapes, module):
    with pytest.raises(apply.Absent):
        source.stand_in(module, "f")


def test_nothing_that_is_read_is_run(tmp_path, monkeypatch):
    """Defaults, decorators and annotations are text to us (promise 10)."""
    made_up.write_files(
        tmp_path,
        {
            "trap/__init__.py": """
                import os
                os._exit(7)

                def f(local_rank: os._exit(7), other=os._exit(7)): ...
            """
        },
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    assert list(source.stand_in("trap", "f").__signature__.parameters) == ["local_rank", "other"]
