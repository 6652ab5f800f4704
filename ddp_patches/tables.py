"""Plain text in columns that fits a terminal, a log file and a mail."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import List, Sequence

WIDTH = 100  # characters
_NARROWEST = 30  # a last column of less is put below its row

_COLOURS = {"green": "32", "red": "31", "yellow": "33", "bold": "1"}
_BY_WORD = {
    "applied": "green",
    "tested": "green",
    "same": "green",
    "armed": "green",
    "failed": "red",
    "not armed": "red",
    "changed": "yellow",
    "mixed": "yellow",
}


def table(rows: Sequence[Sequence[object]], header: Sequence[str] = (), indent: int = 2,
          width: int = WIDTH, colours: bool = False) -> str:  # fmt: skip
    """``rows`` in columns; the last column is wrapped, the others are as wide as they need to be.

    Cells are turned into single lines without control characters, since some come from other hosts. With
    ``colours`` a cell that is one of a few known words (``applied``, ``failed``) is painted.
    """
    cells = [[one_line(cell) for cell in row] for row in rows]
    columns = max([len(row) for row in cells] + [len(header)], default=0)
    lines = ([list(header)] if header else []) + cells
    lines = [row + [""] * (columns - len(row)) for row in lines]
    widths = [max((len(row[column]) for row in lines), default=0) for column in range(columns - 1)]
    start = indent + sum(widths) + 2 * len(widths)
    below = width - start < _NARROWEST
    room = width - indent - 4 if below else width - start
    printed: List[str] = []
    for row in lines:
        wrapped = textwrap.wrap(row[-1], room, break_on_hyphens=False) if columns else []
        left = [_painted(cell.ljust(size), colours) for cell, size in zip(row, widths)]
        head = " " * indent + "".join(cell + "  " for cell in left)
        if below:
            printed += [head] + [" " * (indent + 4) + line for line in wrapped]
        else:
            printed += [head + (wrapped[0] if wrapped else "")]
            printed += [" " * start + line for line in wrapped[1:]]
    return "\n".join(line.rstrip() for line in printed)


def paragraph(text: str, indent: int = 2, width: int = WIDTH) -> str:
    """``text`` wrapped to the width."""
    pad = " " * indent
    return textwrap.fill(
        one_line(text), width, initial_indent=pad, subsequent_indent=pad, break_on_hyphens=False
    )


def heading(text: str, colours: bool = False) -> str:
    """A line above a table."""
    return "\033[%sm%s\033[0m" % (_COLOURS["bold"], text) if colours else text


def one_line(value: object) -> str:
    """A value as text without line breaks and control characters."""
    text = " ".join(str(value).split())
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def colours_wanted() -> bool:
    """Whether standard output is a terminal whose user has not said no to colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _painted(cell: str, colours: bool) -> str:
    code = _COLOURS.get(_BY_WORD.get(cell.strip(), "")) if colours else None
    return "\033[%sm%s\033[0m" % (code, cell) if code else cell
