"""What a patch's target looks like in the source of an installed module, which is read and never run.

The answer is a *stand-in*: an empty function, class or descriptor of the same kind and with the same
signature as the real target would have after an import. The engine's own judgement of live objects
then serves for it too.
"""

from __future__ import annotations

import ast
import functools
import os
from typing import Any, Dict, Iterable, Iterator, List, Tuple

from ..engine.apply import Absent
from ..engine.definitions import (
    Function,
    FunctionNode,
    Unreadable,
    decorator_name,
    is_overload,
    parse,
    signature,
    statements,
)
from . import installed

# Re-exports of re-exports end somewhere; a circle of them does not.
_MAX_IMPORTS_FOLLOWED = 8


class Untold(LookupError):
    """The source does not show what the target will be; only importing it would."""


class _Imported:
    """A name that a module takes from another one."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class _Namespace:
    """The names that a module or class body binds, and the modules it imports everything from."""

    def __init__(self) -> None:
        self.names: Dict[str, Any] = {}
        self.stars: List[str] = []


def stand_in(module: str, attribute: str) -> Any:
    """A stand-in for ``module:attribute``, an attribute being ``function`` or ``Class.method``.

    Raises :class:`ddp_patches.engine.apply.Absent` if there is no such module or attribute, and Untold
    if the source cannot tell.
    """
    first, *rest = attribute.split(".")
    binding, home = _in_module(module, first, 0)
    for part in rest:
        if not isinstance(binding, ast.ClassDef):
            raise Absent("%s has no class %s" % (module, attribute.rpartition(".")[0]))
        # The class's own body: what it inherits is another class's attribute, and stays unpatched here.
        binding = _read(binding.body, home).names.get(part)
    if binding is None:
        raise Absent("%s has no %s" % (module, attribute))
    return _build(binding, home, "%s:%s" % (module, attribute))


def module_file(module: str) -> Tuple[str, bool]:
    """The source file of a module and whether it is a package's ``__init__``.

    Only the top-level name is looked up through the import system; the rest is a walk over folders,
    since a look-up of ``a.b.c`` would import ``a.b``. Raises Absent, and Untold for compiled modules.
    """
    top, *rest = module.split(".")
    spec = installed.locate(top)
    if spec is None:
        raise Absent("%s is not installed" % top)
    folders = [str(folder) for folder in spec.submodule_search_locations or ()]
    path = spec.origin or ""
    for part in rest:
        path, folders = _step(folders, part, module)
    if path.endswith(".py") and os.path.isfile(path):
        return path, os.path.basename(path) == "__init__.py"
    raise Untold("%s has no source file" % module)


def file_of(module: str) -> str:
    """The source file of a module, or an empty string; see :func:`module_file`."""
    try:
        return module_file(module)[0]
    except (Absent, Untold):
        return ""


def why_absent(module: str) -> str:
    """Why there is no such module; an empty string where there is one, or where that cannot be told."""
    try:
        module_file(module)
    except Absent as error:
        return str(error)
    except Untold:
        pass
    return ""


def _step(folders: List[str], part: str, module: str) -> Tuple[str, List[str]]:
    """From a package's folders to the file and the folders of its submodule ``part``."""
    for folder in folders:
        below = os.path.join(folder, part)
        if os.path.isfile(os.path.join(below, "__init__.py")):
            return os.path.join(below, "__init__.py"), [below]
        if os.path.isfile(below + ".py"):
            return below + ".py", []
    for folder in folders:
        below = os.path.join(folder, part)
        if os.path.isdir(below):  # a namespace package
            return "", [below]
        if os.path.isdir(folder) and any(name.split(".")[0] == part for name in os.listdir(folder)):
            raise Untold("%s is compiled" % module)
    raise Absent("there is no module %s" % module)


def _namespace(module: str) -> _Namespace:
    path, is_package = module_file(module)
    return _parsed(path, module if is_package else module.rpartition(".")[0])


@functools.lru_cache(maxsize=64)
def _parsed(path: str, package: str) -> _Namespace:
    try:
        with open(path, "rb") as file:
            tree = parse(file.read())
    except (OSError, Unreadable) as error:
        raise Untold("%s cannot be read: %s" % (path, error)) from error
    return _read(tree.body, package)


def _in_module(module: str, name: str, followed: int) -> Tuple[Any, str]:
    """What ``name`` is bound to in a module, and the module in which that is written; (None, …): nothing."""
    if followed > _MAX_IMPORTS_FOLLOWED:
        raise Untold("%s is imported in a circle" % name)
    namespace = _namespace(module)
    binding = namespace.names.get(name)
    if isinstance(binding, ast.Name) and binding.id != name:  # alias = other
        return _in_module(module, binding.id, followed + 1)
    if isinstance(binding, _Imported):
        try:
            return _in_module(binding.module, binding.name, followed + 1)
        except Absent:
            raise Untold("%s takes %s from %s" % (module, name, binding.module)) from None
    if binding is None:
        for star in reversed(namespace.stars):
            try:
                found = _in_module(star, name, followed + 1)
            except LookupError:
                continue
            if found[0] is not None:
                return found
    return binding, module


def _read(body: Iterable[ast.stmt], package: str) -> _Namespace:
    """The names bound by statements; of several definitions the last counts, as it does at run time.

    ``package`` is what relative imports start from.
    """
    namespace = _Namespace()
    for node in statements(body):
        if isinstance(node, FunctionNode):
            if not is_overload(node):
                namespace.names[node.name] = node
        elif isinstance(node, ast.ClassDef):
            namespace.names[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and node.value is not None:
                    namespace.names[target.id] = node.value
        elif isinstance(node, ast.ImportFrom):
            origin = _absolute(node, package)
            for alias in node.names:
                if alias.name == "*":
                    namespace.stars.append(origin)
                else:
                    namespace.names[alias.asname or alias.name] = _Imported(origin, alias.name)
    return namespace


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - (node.level - 1)]
    return ".".join(base + ([node.module] if node.module else []))


def _build(binding: Any, home: str, target: str) -> Any:
    if isinstance(binding, ast.ClassDef):
        return type(binding.name, (), {})
    if not isinstance(binding, FunctionNode):
        raise Untold("%s is the result of an expression" % target)
    function = _function(binding)
    function.__module__ = home
    for decorator in reversed(binding.decorator_list):
        name = decorator_name(decorator)
        if name in ("staticmethod", "classmethod", "property"):
            function = {"staticmethod": staticmethod, "classmethod": classmethod, "property": property}[name](
                function
            )
        elif name in ("lru_cache", "cache"):
            function = functools.lru_cache(maxsize=None)(function)
        else:
            function = _decorated(function, decorator, home)
    return function


def _decorated(function: Any, decorator: ast.expr, home: str) -> Any:
    """What a decorator makes of a function, as far as its own source shows that.

    Every other one is taken to keep the signature, as contextmanager and functools.wraps do.
    """
    try:
        found, module = _decorator(decorator, home)
    except LookupError:
        return function
    if isinstance(found, ast.ClassDef) and not isinstance(decorator, ast.Call) and _is_called(found):
        return type(found.name, (), {})()
    if isinstance(found, FunctionNode) and _uses_wrapt(found, module):
        import wrapt  # nobody's start-up waits for it here

        def wrapper(wrapped: Any, instance: Any, args: Any, keywords: Any) -> None:
            pass

        wrapper.__module__ = module
        return wrapt.FunctionWrapper(function, wrapper)
    return function


def _decorator(node: ast.expr, home: str) -> Tuple[Any, str]:
    """What ``@name``, ``@module.name`` and calls of the two name, and the module in which that is written."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Name):
        return _in_module(home, node.id, 0)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = _namespace(home).names.get(node.value.id)
        if isinstance(owner, _Imported):  # from package import module
            return _in_module("%s.%s" % (owner.module, owner.name), node.attr, 0)
    return None, home


def _is_called(node: ast.ClassDef) -> bool:
    """Whether objects of a class stand in for functions; its own ``__new__`` may make something else."""
    methods = {each.name for each in node.body if isinstance(each, FunctionNode)}
    return "__call__" in methods and "__new__" not in methods


def _uses_wrapt(decorator: Function, module: str) -> bool:
    """Whether it is a decorator made with ``wrapt.decorator``, or a function that makes one."""
    names = _namespace(module).names
    for node in ast.walk(decorator):
        for each in getattr(node, "decorator_list", ()):
            each = each.func if isinstance(each, ast.Call) else each
            owner = getattr(getattr(each, "value", None), "id", "")
            imported = names.get(getattr(each, "id", ""))
            source = imported.module if isinstance(imported, _Imported) else owner
            if decorator_name(each) == "decorator" and source.partition(".")[0] == "wrapt":
                return True
    return False


def _function(node: Function) -> Any:
    async def coroutine() -> None:
        pass

    def generator() -> Iterator[None]:
        yield

    def plain() -> None:
        pass

    if isinstance(node, ast.AsyncFunctionDef):
        return _with_signature(coroutine, node)
    return _with_signature(generator if not node.decorator_list and _yields(node) else plain, node)


def _yields(function: ast.AST) -> bool:
    """Whether a function's own body yields; functions and classes in it are others' bodies."""
    return any(
        isinstance(part, (ast.Yield, ast.YieldFrom)) or _yields(part)
        for part in ast.iter_child_nodes(function)
        if not isinstance(part, (*FunctionNode, ast.ClassDef, ast.Lambda))
    )


def _with_signature(function: Any, node: Function) -> Any:
    function.__name__ = node.name
    function.__signature__ = signature(node.args)
    return function
