"""Finds a function's definition in the source of a module, which is read and never run."""

from __future__ import annotations

import ast
import inspect
import warnings
from typing import Any, Iterable, List, Optional, Tuple, Union

FunctionNode = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


class Unreadable(ValueError):
    """The source cannot be parsed by this Python."""


def parse(source: Union[bytes, str]) -> ast.Module:
    """The syntax tree of a module. Raises Unreadable, whatever is wrong with the text."""
    with warnings.catch_warnings():
        # What Python thinks of upstream's escapes and comparisons is nobody's business here.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise Unreadable(str(error)) from error


def statements(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """The statements of a body and of the blocks in it, such that of two bindings of a name the last counts.

    Of alternatives the one comes last that a normal run takes: the body of ``try`` after its handlers, of
    ``if`` after ``else``. What is only there for type checkers is left out.
    """
    for node in body:
        if isinstance(node, ast.If):
            yield from statements(node.orelse)
            if getattr(node.test, "id", getattr(node.test, "attr", "")) != "TYPE_CHECKING":
                yield from statements(node.body)
        elif isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from statements(handler.body)
            yield from statements([*node.body, *node.orelse, *node.finalbody])
        elif isinstance(node, (ast.With, ast.For, ast.While)):
            yield from statements(node.body)
        else:
            yield node


def find(tree: ast.Module, attribute: str) -> Optional[ast.stmt]:
    """The function or class that ``Class.method`` or ``function`` names; of several definitions the last."""
    body: List[ast.stmt] = tree.body
    found: Optional[ast.stmt] = None
    for name in attribute.split("."):
        found = None
        for node in statements(body):
            named = isinstance(node, (*FunctionNode, ast.ClassDef)) and node.name == name
            if named and not is_overload(node):
                found = node
        if found is None:
            return None
        body = found.body if isinstance(found, ast.ClassDef) else []
    return found


def is_overload(node: ast.stmt) -> bool:
    """Whether it is a signature for type checkers, which the real definition follows."""
    return any(decorator_name(each) == "overload" for each in getattr(node, "decorator_list", ()))


def decorator_name(node: ast.expr) -> str:
    """``cache`` of ``@cache``, ``@functools.cache`` and ``@functools.cache()``."""
    if isinstance(node, ast.Call):
        node = node.func
    return getattr(node, "id", getattr(node, "attr", ""))


class _Default:
    """A default value that is shown and never evaluated."""

    def __init__(self, node: ast.expr) -> None:
        self._text = repr(node.value) if isinstance(node, ast.Constant) else "..."

    def __repr__(self) -> str:
        return self._text


def signature(arguments: ast.arguments) -> inspect.Signature:
    """The signature that a function with these arguments has, without annotations."""
    Parameter = inspect.Parameter
    positional: List[Tuple[ast.arg, Any]] = [(a, Parameter.POSITIONAL_ONLY) for a in arguments.posonlyargs]
    positional += [(a, Parameter.POSITIONAL_OR_KEYWORD) for a in arguments.args]
    defaults: List[Optional[ast.expr]] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    parameters = [_parameter(a, kind, default) for (a, kind), default in zip(positional, defaults)]
    if arguments.vararg:
        parameters.append(_parameter(arguments.vararg, Parameter.VAR_POSITIONAL, None))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
        parameters.append(_parameter(argument, Parameter.KEYWORD_ONLY, default))
    if arguments.kwarg:
        parameters.append(_parameter(arguments.kwarg, Parameter.VAR_KEYWORD, None))
    return inspect.Signature(parameters)


def _parameter(argument: ast.arg, kind: Any, default: Optional[ast.expr]) -> inspect.Parameter:
    shown = inspect.Parameter.empty if default is None else _Default(default)
    return inspect.Parameter(argument.arg, kind, default=shown)
