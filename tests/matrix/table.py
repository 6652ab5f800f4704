"""Write the table of versions into the README, from the outcomes that were kept.

    python tests/matrix/table.py

It has a line for each passing outcome of the releases that have passed, and for nothing else: see passed.py.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from matrix import passed, results
from support import releases

README = pathlib.Path(__file__).parents[2] / "README.md"
BEGIN = "<!-- Written by tests/matrix/table.py from tests/matrix/results.jsonl. -->\n"
END = "<!-- End of what is written by tests/matrix/table.py. -->\n"

HEAD = """\
| tested | with | Python | last passed |
|---|---|---|---|
"""


def table(rows: list[dict[str, Any]]) -> str:
    """The lines of what has passed, in the order of cells.json."""
    order = [cell["name"] for cell in releases.cells()]
    shown = sorted(passed.counting(rows), key=lambda row: (order.index(row["cell"]), row["python"]))
    return HEAD + "".join(dict.fromkeys(_line(row) for row in shown))  # one torch has several cells


def _line(row: dict[str, Any]) -> str:
    tested = ", ".join("%s %s" % pair for pair in row.get("frameworks", {}).items())
    tested = tested or ("torch %s" % row["torch"] if "torch" in row else "no framework, no torch")
    beside = ["torch %s" % row["torch"]] if row.get("frameworks") else []
    beside += ["%s %s" % (name, row[name]) for name in ("wrapt", "packaging")]
    cells = tested, ", ".join(beside), row["python"], "%s, %s" % (row["date"], row["platform"])
    return "| %s |\n" % " | ".join(cells)


def main() -> None:
    """Replace what stands between the two marks."""
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    README.write_text(before + BEGIN + table(results.rows()) + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
