"""Putting a function in the place of another, in every module that holds it, and back."""

from __future__ import annotations

import dataclasses
import functools
import gc
import inspect
import sys
import types
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from .. import _finder

OWN_PACKAGE = "ddp_patches"


class Absent(LookupError):
    """The target does not exist in the imported module."""


@dataclasses.dataclass
class Replacement:
    """One replaced function: ``owner`` is a class, or None where the target lives in module dicts."""

    original: Any
    function: Callable[..., Any]
    owner: Optional[type]
    name: str
    place: str = ""  # module:attribute, where ``original`` was found
    holders: int = 0

    def install(self) -> None:
        """Put ``function`` wherever ``original`` is held; counts the holders."""
        if self.owner is not None:
            setattr(self.owner, self.name, self.function)
            self.holders = 1
        else:
            self.holders = sweep(self.original, self.function)

    def remove(self) -> None:
        """Put ``original`` back, also where ``function`` was imported by name meanwhile."""
        if self.owner is not None:
            # Somebody may have wrapped ours since; what is there then is not ours to take away.
            if self.owner.__dict__.get(self.name) is self.function:
                setattr(self.owner, self.name, self.original)
        else:
            sweep(self.function, self.original)

    def is_reached(self) -> bool:
        """Whether the target still leads to ``function``, by itself or through others' wrappers."""
        module_name, _, attribute = self.place.partition(":")
        try:
            _, _, found = find(sys.modules[module_name], attribute)
            return inspect.unwrap(found, stop=lambda inner: inner is self.function) is self.function
        except (LookupError, ValueError):  # no such module or attribute; wrappers that go in circles
            return False


def find(module: types.ModuleType, attribute: str) -> Tuple[Optional[type], str, Any]:
    """(class or None, last name, object) of ``Class.method`` or ``function`` in ``module``.

    The object is read from the dict that holds it, so that no descriptor and no lazy attribute runs.
    Raises Absent.
    """
    namespace: Any = _finder.namespace_of(module) or {}
    owner: Optional[type] = None
    *classes, name = attribute.split(".")
    for class_name in classes:
        owner = namespace.get(class_name)
        if not inspect.isclass(owner):
            raise Absent("%s has no class %s" % (module.__name__, class_name))
        namespace = owner.__dict__
    if name not in namespace:
        raise Absent("%s has no %s" % (module.__name__, attribute))
    return owner, name, namespace[name]


def dress(function: Callable[..., Any], original: Any, patch_id: str) -> Callable[..., Any]:
    """Give ``function`` upstream's name, module, docstring and signature, and our mark.

    Raises TypeError for anything but a plain function: it would not pickle as upstream's does.
    """
    if type(function) is not types.FunctionType or function is original:
        raise TypeError("the patch must build a plain function of its own, not %r" % (function,))
    functools.update_wrapper(function, original)
    function.__ddp_patches__ = patch_id  # type: ignore[attr-defined]
    return function


_tables: Dict[str, str] = {}


def look_into(kind: str, attribute: str) -> None:
    """Let :func:`sweep` also look into a dict that objects of one class keep.

    OpenMMLab finds classes and functions through registries, which hold what was registered.

    Args:
        kind: the class, as ``module:Class``; it need not be imported.
        attribute: where an object of that class keeps its dict.
    """
    _tables[kind] = attribute


def sweep(old: Any, new: Any) -> int:
    """Replace ``old`` by ``new``, by identity, in the dict of every imported module; counts the places.

    ``from x import y`` done earlier has put the same object into many modules. Names are not looked at,
    so that aliases are found too.
    """
    kinds = _imported_kinds()
    tables: Dict[int, Dict[Any, Any]] = {}  # by id: many modules hold the same registry
    places = 0
    for module_name, module in list(sys.modules.items()):
        if str(module_name).partition(".")[0] == OWN_PACKAGE:
            continue
        namespace = _finder.namespace_of(module) or {}
        for name, value in namespace.copy().items():  # a copy: another thread may be importing
            if value is old and namespace.get(name) is old:
                namespace[name] = new
                places += 1
            elif id(type(value)) in kinds:
                table = object.__getattribute__(value, "__dict__").get(kinds[id(type(value))])
                if isinstance(table, dict):
                    tables[id(table)] = table
    return places + sum(_exchange(table, old, new) for table in tables.values())


def _imported_kinds() -> Dict[int, str]:
    """Attribute by the class's id: a metaclass may have a comparison of its own."""
    kinds = {}
    for kind, attribute in _tables.items():
        module_name, _, name = kind.partition(":")
        found = (_finder.namespace_of(sys.modules.get(module_name)) or {}).get(name)
        if isinstance(found, type):
            kinds[id(found)] = attribute
    return kinds


def _exchange(table: Dict[Any, Any], old: Any, new: Any) -> int:
    names = [name for name, value in table.copy().items() if value is old]
    for name in names:
        table[name] = new
    return len(names)


def unreachable_holders(replacements: Sequence[Replacement]) -> List[List[str]]:
    """Where upstream's functions are still held and no sweep can reach: closures, partials, class bodies.

    One list for each replacement. Goes through the garbage collector's lists four times (some tens of
    milliseconds each, however many functions are asked for): for ``status``, not for the start-up path.
    """
    found: Dict[int, Set[str]] = {id(each.original): set() for each in replacements}
    owners = {id(each.original): each.owner for each in replacements}
    cells: Dict[int, types.CellType] = {}
    bodies: List[Dict[str, Any]] = []
    for holder in gc.get_referrers(*[each.original for each in replacements]):
        if isinstance(holder, functools.partial):
            found.get(id(holder.func), set()).add("a functools.partial")
        elif isinstance(holder, types.CellType):
            cells[id(holder)] = holder
        elif isinstance(holder, dict) and "__module__" in holder:  # perhaps a class's
            bodies.append(holder)
    closures = [holder for holder in gc.get_referrers(*cells.values()) if isinstance(holder, tuple)]
    for function in gc.get_referrers(*closures):
        if isinstance(function, types.FunctionType) and not _is_ours(function):
            name = "the closure of %s.%s" % (function.__module__, function.__qualname__)
            for cell in function.__closure__ or ():
                if id(cell) in cells:
                    found.get(id(cell.cell_contents), set()).add(name)
    for cls in gc.get_referrers(*bodies):
        if isinstance(cls, type):
            for value in list(vars(cls).values()):
                if id(value) in found and cls is not owners[id(value)]:
                    found[id(value)].add("the class %s.%s" % (cls.__module__, cls.__qualname__))
    return [sorted(found[id(each.original)]) for each in replacements]


def _is_ours(function: types.FunctionType) -> bool:
    # Not by its __module__: a replacement bears upstream's.
    module = function.__globals__.get("__name__") or ""
    return module.partition(".")[0] == OWN_PACKAGE or "__ddp_patches__" in function.__dict__
