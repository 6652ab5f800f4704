"""What becomes of a job in which something goes wrong: the last section of ``patches.md``.

``faults.json`` is also what tests/faults/test_fault_matrix.py has happen, cell by cell.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, List

_HEADER = ["fault", "where", "started", "it exits with", "the others", "launcher", "over", "the log says"]


def load() -> Dict[str, Any]:
    """The table as data."""
    path = pathlib.Path(__file__).with_name("faults.json")
    found: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def section() -> List[str]:
    """Lines of Markdown."""
    data = load()
    lines = ["## When something goes wrong", "", *data["introduction"], ""]
    for title in ("faults", "places", "started", "over"):
        lines += ["- %s: %s" % (word, text) for word, text in data[title].items()]
    lines += ["", "| %s |" % " | ".join(_HEADER), "|%s" % ("---|" * len(_HEADER))]
    lines += ["| %s |" % " | ".join(_columns(cell)) for cell in data["cells"]]
    lines += ["", "Not in the table:", ""]
    return lines + ["- " + reason for reason in data["absent"]]


def _columns(cell: Dict[str, Any]) -> List[str]:
    codes = [str(cell.get(name, "")) for name in ("it", "others", "launcher")]
    log = "<br>".join("`%s`" % text for text in cell.get("log", []))
    note = cell.get("note", "")
    return [
        cell["fault"],
        cell["place"],
        cell["started"],
        *codes,
        cell["over"],
        " ".join([log, note]).strip(),
    ]
