"""How a patch is written down: its metadata, and its replacements for upstream's functions.

::

    zero_first = patch(
        "ultralytics.zero_first",
        package="ultralytics",
        summary="ranks wait for a slow leader without a time-out, and hear why when it fails",
        why="rank 0's label scan outlives the process group's timeout",
        upstream="https://github.com/ultralytics/ultralytics/issues/1439",
        since="0.1.0",
        remove_when="upstream's barrier no longer counts against the collective timeout",
    )

    @zero_first.replaces(
        "ultralytics.utils.torch_utils|ultralytics.yolo.utils.torch_utils:torch_distributed_zero_first",
        parameters=("local_rank",),
    )
    def torch_distributed_zero_first(original):
        def replacement(local_rank): ...
        return replacement

The function below ``replaces`` gets upstream's function and returns ours. It runs when the target's
module has been imported, never before. What it returns gets upstream's name, so that it pickles by
reference: a process without ddp_patches then unpickles upstream's own.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, List, Optional, Tuple

Builder = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclasses.dataclass(frozen=True)
class Target:
    """A module (or the places where releases keep it) and an attribute, such as ``Class.method``."""

    modules: Tuple[str, ...]
    attribute: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """``"package.module|package.older_module:Class.method"``; raises ValueError for other shapes."""
        modules, separator, attribute = text.partition(":")
        if not separator or not modules or not attribute:
            raise ValueError("a target is written module:attribute, not %r" % text)
        return cls(tuple(modules.split("|")), attribute)

    def __str__(self) -> str:
        return "%s:%s" % ("|".join(self.modules), self.attribute)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A patch's code for one target in a range of upstream versions (``""``: all)."""

    target: Target
    versions: str
    parameters: Tuple[str, ...]
    build: Builder
    stranger: Optional[Callable[[Callable[..., Any]], Optional[str]]] = None
    by_name: bool = False
    of_any_shape: bool = False


@dataclasses.dataclass
class Patch:
    """One behaviour of one framework; see :func:`patch`."""

    id: str
    package: str
    summary: str
    why: str
    upstream: str
    since: str
    remove_when: str
    tested: Tuple[str, ...] = ()
    fixed_in: str = ""
    condition: Optional[Callable[[], Optional[str]]] = None
    variants: List[Variant] = dataclasses.field(default_factory=list)

    def replaces(
        self,
        target: str,
        parameters: Tuple[str, ...] = (),
        versions: str = "",
        stranger: Optional[Callable[[Callable[..., Any]], Optional[str]]] = None,
        by_name: bool = False,
        of_any_shape: bool = False,
    ) -> Callable[[Builder], Builder]:
        """Decorator for the function that builds the replacement of ``target``.

        ``parameters``: names that the replacement hands to upstream or reads. If the installed
        signature lacks one of them, requires another, or does not take them by position, as the first and
        in this order, the verdict is ``changed`` and upstream is left alone. ``by_name``: the replacement
        hands its call on as it came, or binds it to the installed signature; order and kind then do not
        matter. ``of_any_shape``: upstream's may be no plain function, since the replacement never calls it
        (``lru_cache`` makes an object). ``versions``: a specifier such as ``">=8.0,<8.4.100"``.
        ``stranger``: for a module name that others use as well; gets upstream's function and returns why it
        is somebody else's, or None.
        """
        parsed = Target.parse(target)

        def decorator(build: Builder) -> Builder:
            names = tuple(parameters)
            variant = Variant(parsed, versions, names, build, stranger, by_name, of_any_shape)
            self.variants.append(variant)
            return build

        return decorator


def patch(
    id: str,
    *,
    package: str,
    summary: str,
    why: str = "",
    upstream: str = "",
    since: str = "",
    remove_when: str = "",
    tested: Tuple[str, ...] = (),
    fixed_in: str = "",
    condition: Optional[Callable[[], Optional[str]]] = None,
) -> Patch:
    """Declare a patch and enter it into the catalogue.

    Args:
        id: ``framework.behaviour``; users name it in ``skip``.
        package: the import name whose ``__version__`` decides which variant is used.
        summary: what it does, one line, for ``patches.md`` and ``ddp-patches list``.
        why: which fault it cures; upstream: link to the report or the source; since: our release;
            remove_when: the day on which it is no longer needed, for people; or "never: " and the reason.
            What programs go by is ``fixed_in``, together with a test that is marked ``upstream_fault(id)``.
        tested: upstream versions that its tests are for; each counts once they have passed there.
        fixed_in: specifier of upstream versions that no longer need it: there it is ``fixed upstream`` and
            left out. Empty until the test that is marked ``upstream_fault(id)``, which runs upstream's code
            without the patch, no longer finds the fault in a release and fails.
        condition: called before applying; a returned sentence is the reason to skip.

    Raises ValueError if the id is taken.
    """
    from . import catalogue

    entry = Patch(id, package, summary, why, upstream, since, remove_when, tuple(tested), fixed_in, condition)
    catalogue.register(entry)
    return entry
