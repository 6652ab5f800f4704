"""``ddp-patches list``: all patches with what is known of them; also writes ``patches.md``."""

from __future__ import annotations

import argparse
import json
from typing import Any, Dict, List, Sequence

from ..engine import catalogue, versions
from ..engine.patch import Patch
from ..tables import table
from . import faults

HELP = "list all patches; --markdown prints the whole patches.md"

REFRESH = "ddp-patches list --markdown > patches.md"

_EXAMPLES = """\
examples:
  ddp-patches list                      ids and what each does
  ddp-patches list --json               everything that is known of each
  ddp-patches list --markdown > patches.md
  DDP_PATCHES_SKIP=torch.teardown,ultralytics.*   leaves patches out, by id or glob

Whether a patch fits what is installed: ddp-patches status
"""

_INTRODUCTION = """\
# Patches

Each entry is one behaviour of one framework. The file is written by `{command}`
from what the patches say of themselves; change it there. What becomes of a job in which something goes wrong
is in the table [at the end](#when-something-goes-wrong).

A patch whose target is absent, or no longer has the signature it needs, is skipped, and upstream's code runs
as it is: `ddp-patches status` says which and why. `DDP_PATCHES_SKIP=ID` leaves a patch out (several with
commas, globs such as `ultralytics.*`); `DDP_PATCHES=0` leaves out all of them.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--markdown", action="store_true", help="print patches.md")


def run(arguments: argparse.Namespace) -> int:
    """Print the catalogue."""
    patches = catalogue.load()
    if arguments.markdown:
        print(markdown(patches) + "\n" + "\n".join(faults.section()))
    elif arguments.json:
        print(json.dumps({"patches": [as_dict(patch) for patch in patches]}, indent=2))
    else:
        rows = [[patch.id, patch.package, patch.summary] for patch in patches]
        print(table(rows, ["id", "package", "what it does"], indent=0))
    return 0


def as_dict(patch: Patch) -> Dict[str, Any]:
    """Everything that a patch says of itself, as JSON would hold it."""
    return {
        "id": patch.id,
        "package": patch.package,
        "summary": patch.summary,
        "why": patch.why,
        "upstream": patch.upstream,
        "since": patch.since,
        "remove_when": patch.remove_when,
        "tested": list(versions.tested_releases(patch)),
        "fixed_in": patch.fixed_in,
        "targets": [
            {
                "modules": list(variant.target.modules),
                "attribute": variant.target.attribute,
                "versions": variant.versions,
                "parameters": list(variant.parameters),
            }
            for variant in patch.variants
        ],
    }


def markdown(patches: Sequence[Patch]) -> str:
    """The text of ``patches.md`` about patches."""
    lines = [_INTRODUCTION.format(command=REFRESH), "| id | what it does |", "|---|---|"]
    lines += ["| [`%s`](#%s) | %s |" % (patch.id, anchor(patch.id), patch.summary) for patch in patches]
    for patch in patches:
        lines += ["", *_entry(patch)]
    return "\n".join(lines) + "\n"


def anchor(heading: str) -> str:
    """The link target that Markdown viewers give to a heading."""
    return "".join(c for c in heading.lower() if c.isalnum() or c in "_-")


def _entry(patch: Patch) -> List[str]:
    tested = versions.tested_releases(patch)
    facts = [
        ("Why", _sentence(patch.why)),
        ("Upstream", ", ".join("<%s>" % link for link in patch.upstream.split())
         if patch.upstream.startswith("http") else patch.upstream),
        ("Tested on", "%s %s" % (patch.package, ", ".join(tested)) if tested else ""),
        ("Since", "ddp_patches " + patch.since if patch.since else ""),
        ("Not needed on", "%s %s" % (patch.package, patch.fixed_in) if patch.fixed_in else ""),
        ("Remove when", patch.remove_when),
    ]  # fmt: skip
    lines = ["## " + patch.id, "", _sentence(patch.summary), ""]
    lines += ["- %s: %s" % fact for fact in facts if fact[1]]
    lines += ["- Replaces:"]
    for target in dict.fromkeys(variant.target for variant in patch.variants):
        ranges = dict.fromkeys(v.versions for v in patch.variants if v.target == target)
        lines.append(
            "  - `%s` in %s (%s)" % (
                target.attribute,
                " or ".join("`%s`" % module for module in target.modules),
                "; ".join("%s %s" % (patch.package, range) if range else "every release" for range in ranges),
            )
        )  # fmt: skip
    return lines


def _sentence(text: str) -> str:
    """With a capital and a full stop; a name that begins small (``torch.…``) keeps its form."""
    if not text:
        return ""
    first = text.split()[0]
    start = text if "." in first or "_" in first else text[0].upper() + text[1:]
    return start if start.endswith((".", "!", "?")) else start + "."
