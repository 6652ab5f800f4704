"""``ddp-patches status``: what would be patched here, what may fail later, and what a job did."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Dict, List, Mapping, Optional

from .. import overview, overview_job, overview_text, propagation
from ..runtime import run_folder
from ..tables import colours_wanted, paragraph, table
from . import installations

HELP = "what is patched, with which versions and limits, and what may fail later; --run for a job"

_EXAMPLES = """\
examples:
  ddp-patches status                    before a run: versions, patches, settings, what may fail later
  ddp-patches status --json             the same for programs
  ddp-patches status --run newest       the last job: every rank, every patch, the limits in force
  ddp-patches status --run ID --json
  ddp-patches status --runs             which jobs there are

states:    would apply, applied, waiting (not imported yet), skipped, failed
verdicts:  tested (our tests ran this version), same (they ran this very code in another version),
           compatible (the signature fits), changed (it does not, so upstream's code stays), absent,
           fixed upstream

Nothing is imported to find this out. Inside a process: print(ddp_patches.status())
"""

_OUT_OF_REACH = (
    "Not reached: python -E, -I and -S, and Pythons of other installations. "
    "Whether your launcher's processes are: ddp-patches probe -- LAUNCHER"
)

_NEWEST = "newest"
# Programs that people start trainings with, and that may belong to another Python than ours.
_PROGRAMS = ("torchrun", "yolo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("--json", action="store_true", help="print JSON")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--run", metavar="ID", help="show a job instead: its id, or 'newest'")
    which.add_argument("--runs", action="store_true", help="list the jobs whose ledger is kept, newest first")


def run(arguments: argparse.Namespace) -> int:
    """Print the overview; 1 where the job that is asked for has left nothing."""
    if arguments.runs:
        return _list_runs(arguments.json)
    if arguments.run:
        return _show_run(arguments.run, arguments.json)
    found = overview.before_a_run(os.environ)
    found.warnings += programs_elsewhere(os.environ) + _obstacle()
    newest = next(iter(_summaries(1)), None)
    if arguments.json:
        print(as_json({**found.as_dict(), "newest_run": newest}))
        return 0
    colours = colours_wanted()
    lines = [paragraph("none has left a ledger yet")]
    if newest is not None:
        lines = [paragraph(newest["summary"]), "  ddp-patches status --run %s" % newest["run"]]
    print(overview_text.text(found, colours))
    print("\n" + overview_text.section("Newest job", "\n".join(lines), colours))
    print("\n" + paragraph(_OUT_OF_REACH, indent=0))
    return 0


def programs_elsewhere(environ: Mapping[str, str]) -> List[Dict[str, str]]:
    """A warning for each launcher on PATH that starts a Python that ours cannot reach."""
    found = []
    for program in _PROGRAMS:
        other = installations.other_installation([program], environ)
        if other is not None:
            message = "%s on PATH starts the Python in %s, and ddp-patches is installed in %s" % (
                program, other.prefix, installations.own().prefix
            )  # fmt: skip
            found.append({"id": "program", "message": message, "advice": "install ddp-patches there as well"})
    return found


def _obstacle() -> List[Dict[str, str]]:
    problem = propagation.obstacle()
    return (
        [{"id": "propagation", "message": "no child process can be reached: " + problem, "advice": ""}]
        if problem
        else []
    )


def _show_run(wanted: str, json_wanted: bool) -> int:
    run_id = wanted
    if wanted == _NEWEST:
        ids = _run_ids()
        if not ids:
            print("ddp-patches: no job has left a ledger", file=sys.stderr)
            return 1
        run_id = ids[0]
    record = _read(run_id)
    if record is None:
        known = ", ".join(_run_ids()[:3])
        hint = "the newest: %s" % known if known else "there is none at all"
        print("ddp-patches: there is no ledger of a job %r; %s" % (run_id, hint), file=sys.stderr)
        return 1
    found = overview_job.of_run({**record, "stalls": overview_job.stalls(run_folder.stalls(run_id))})
    overview_job.say_what_changed(found.patches)
    print(as_json(found.as_dict()) if json_wanted else overview_text.text(found, colours_wanted()))
    return 0


def _list_runs(json_wanted: bool) -> int:
    rows = _summaries(None)
    if json_wanted:
        print(as_json({"runs": rows}))
    elif not rows:
        print("No job has left a ledger yet.")
    else:
        print(table([[row["run"], row["summary"]] for row in rows], indent=0))
    return 0


def _summaries(count: Optional[int]) -> List[Dict[str, Any]]:
    rows = []
    for run_id in _run_ids()[:count]:
        record = _read(run_id)
        if record is not None:
            found = overview_job.of_run(record)
            rows.append(
                {"run": run_id, "started": record.get("started", ""), "summary": overview_text.of_run(found)}
            )
    return rows


def _run_ids() -> List[str]:
    try:
        return run_folder.runs()
    except ValueError:  # with strict, a setting that cannot be understood; the overview says so
        return []


def _read(run_id: str) -> Optional[Mapping[str, Any]]:
    try:
        return run_folder.read(run_id)
    except (OSError, ValueError):
        return None


def as_json(found: Mapping[str, Any]) -> str:
    """JSON with a stable order of keys."""
    return json.dumps(found, indent=2, default=str)
