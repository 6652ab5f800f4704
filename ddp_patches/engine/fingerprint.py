"""What tells two releases of a function apart: a hash of what its source does, its signature, what it calls.

The same source has the same fingerprint on every Python. Docstrings, comments, layout and annotations do
not count; a decorator, a default value and the order of statements do.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
from typing import Any, Iterator, List, Optional, Tuple, Union

from . import definitions

_DIGITS = 16  # of 64: enough to tell some thousand definitions apart, and short to ship
# What says nothing of what a function does: where names are written or read from, comments, annotations.
_LEFT_OUT = frozenset(("annotation", "ctx", "kind", "returns", "type_comment"))


@dataclasses.dataclass(frozen=True)
class Definition:
    """A target as a module's source defines it; ``calls`` are the dotted names it calls, sorted."""

    fingerprint: str
    signature: str
    calls: Tuple[str, ...] = ()


def of_file(path: Optional[str], attribute: str) -> Optional[Definition]:
    """The definition of ``attribute`` in a source file; None where it has no source that can be read."""
    if not path or not path.endswith(".py"):  # compiled, or without a file
        return None
    try:
        return _of_tree(_tree(path), attribute)
    except (OSError, definitions.Unreadable, RecursionError):
        return None


def of_source(source: Union[bytes, str], attribute: str) -> Optional[Definition]:
    """The definition of ``attribute``, ``function`` or ``Class.method``, in a module's source, or None."""
    try:
        return _of_tree(definitions.parse(source), attribute)
    except (definitions.Unreadable, RecursionError):
        return None


@functools.lru_cache(maxsize=8)
def _tree(path: str) -> ast.Module:
    # Several targets lie in one file, and a large one takes 60 ms to parse.
    with open(path, "rb") as file:
        return definitions.parse(file.read())


def _of_tree(tree: ast.Module, attribute: str) -> Optional[Definition]:
    node = definitions.find(tree, attribute)
    if node is None:
        return None
    shown = ""
    if isinstance(node, definitions.FunctionNode):
        shown = str(definitions.signature(node.args))
    digest = hashlib.sha256(normalised(node).encode("ascii")).hexdigest()
    return Definition(digest[:_DIGITS], shown, tuple(sorted(set(_called(node)))))


def normalised(node: ast.AST) -> str:
    """The syntax tree as text; the same on Python 3.8 and newer, which build different trees."""
    return "".join(_written(node))


def _written(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        yield "["
        for item in value:
            yield from _written(item)
            yield ","
        yield "]"
    elif isinstance(value, ast.AST):
        yield from _written_node(value)
    else:
        # Not repr: which characters it escapes is a matter of the Python's Unicode tables.
        yield ascii(value)


def _written_node(node: ast.AST) -> Iterator[str]:
    name = type(node).__name__
    if name == "Index":  # around the index of a subscript, before Python 3.9
        yield from _written(node.value)  # type: ignore[attr-defined]
        return
    if name == "ExtSlice":  # a tuple since 3.9
        yield from ("Tuple(elts=", *_written(node.dims), ";)")  # type: ignore[attr-defined]
        return
    yield name + "("
    for field in node._fields:
        value = getattr(node, field, None)
        if field in _LEFT_OUT:
            continue
        if field == "body" and isinstance(node, (*definitions.FunctionNode, ast.ClassDef)):
            value = _without_docstring(value)
        elif field == "values" and isinstance(node, ast.JoinedStr):
            value = _joined(node.values)
        elif field == "format_spec" and isinstance(value, ast.JoinedStr) and not value.values:
            value = None
        # An empty field may be one that other Pythons do not have. A constant's value is never empty.
        if isinstance(node, ast.Constant) or value not in (None, []):
            yield field + "="
            yield from _written(value)
            yield ";"
    yield ")"


def _without_docstring(body: Any) -> Any:
    first = body[0] if body else None
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return body[1:]
    return body


def _joined(values: List[ast.expr]) -> List[ast.expr]:
    """The parts of an f-string with neighbouring texts as one: Python 3.12 splits them elsewhere."""
    parts: List[ast.expr] = []
    for value in values:
        before = parts[-1] if parts else None
        if isinstance(value, ast.Constant) and isinstance(before, ast.Constant):
            parts[-1] = ast.Constant(str(before.value) + str(value.value))
        elif not (isinstance(value, ast.Constant) and value.value == ""):
            parts.append(value)
    return parts


def _called(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        name = _dotted(part.func) if isinstance(part, ast.Call) else ""
        if name:
            yield name


def _dotted(node: ast.expr) -> str:
    """``a.b.c`` of a chain of attributes that starts with a name, else an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return owner and "%s.%s" % (owner, node.attr)
    return ""
