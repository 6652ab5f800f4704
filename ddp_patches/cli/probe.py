"""``ddp-patches probe``: do the patches reach the processes that a training starts?

Starts one small child of each kind from an armed process, or of a given launcher, and asks each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from .. import overview, propagation, settings
from ..tables import colours_wanted, one_line, table
from . import probe_child, probe_kinds

HELP = "start one small child of each kind, or through a launcher, and say which get the patches"

_EXAMPLES = """\
examples:
  ddp-patches probe                               subprocess, fork, spawn, forkserver, bash, torchrun …
  ddp-patches probe --no-torch                    without the kinds that import torch: a second
  ddp-patches probe -- torchrun --nproc-per-node 2
  ddp-patches probe -- srun -n 4                  does srun hand the environment on?
  ddp-patches probe -- srun -n 4 ddp-patches run --
  ddp-patches probe -- bash -c 'module load x; srun -n 4 {probe}'

A small program takes the place of the training: it is appended to the launcher's words, or stands where
{probe} does. It trains nothing, and imports no torch there. A process is armed if the patches wait in it for
torch, or are on. Exit code 0: all that should be armed are; 1: one is not, or gave no answer.
"""

_LAUNCHER_SECONDS = 60.0
_SHOWN_LINES = 20  # of what a failed launcher printed


class Outcome(NamedTuple):
    """What became of a command: its exit code (None: ended at its limit), the answers, its error output."""

    code: Optional[int]
    answers: List[Dict[str, Any]]
    errors: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "ddp-patches probe [options] [-- LAUNCHER …]"
    parser.epilog = _EXAMPLES
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--no-torch", action="store_true", help="leave out the kinds that import torch")
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="limit for the launcher (60), or for each child (20 or 60)",
    )
    parser.add_argument(
        "launcher", nargs=argparse.REMAINDER, metavar="LAUNCHER", help="words that start ranks"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print which processes are armed; 0 if all that should be are, 1 if not, 2 if it cannot run."""
    launcher = arguments.launcher[1:] if arguments.launcher[:1] == ["--"] else arguments.launcher
    environ = dict(os.environ)
    problem = _arm(environ)
    token = secrets.token_hex(8)
    try:
        with tempfile.TemporaryDirectory(prefix="ddp_patches-probe-") as folder:
            if launcher:
                rows = _through(launcher, environ, token, folder, arguments.timeout or _LAUNCHER_SECONDS)
            else:
                kinds = probe_kinds.kinds(token, folder, not arguments.no_torch)
                rows = [_row_of(kind, environ, token, folder, arguments.timeout) for kind in kinds]
    except OSError as error:  # no such launcher, or no folder that can be written
        what = launcher[0] if launcher else "the probe"
        print("ddp-patches: cannot run %s: %s" % (what, error.strerror or error), file=sys.stderr)
        return 2
    good = all(row["armed"] for row in rows if row["expected"] and not row["skipped"])
    if arguments.json:
        found = {"armed": good, "launcher": list(launcher), "problem": problem, "processes": rows}
        print(json.dumps(found, indent=2))
    else:
        print(_text(rows, good, bool(launcher), problem))
    return 0 if good else 1


def _arm(environ: Dict[str, str]) -> str:
    """Give ``environ`` what an armed process gives its children; why it does not, or an empty string."""
    loaded, _ = overview.load_settings(environ)
    if settings.is_off(environ):
        return "%s=%s is set, which turns everything off" % (settings.SWITCH, environ[settings.SWITCH])
    if not loaded.settings.propagate:
        return "the setting propagate is off: child processes are not armed"
    propagation.arm(environ)
    return propagation.obstacle()


def _row_of(
    kind: probe_kinds.Kind, environ: Mapping[str, str], token: str, folder: str, limit: Optional[float]
) -> Dict[str, Any]:
    if kind.missing:
        return _row(kind.name, kind.what, kind.expected, None, kind.missing, skipped=True)
    own = os.path.join(folder, kind.name.replace(" ", ""))
    os.mkdir(own)
    seconds = limit or kind.limit
    command = [own if word == folder else word for word in kind.command]
    outcome = execute(command, environ, token, own, seconds)
    if not outcome.answers:
        reason = probe_kinds.no_answer(outcome.code, seconds, outcome.errors)
        return _row(kind.name, kind.what, kind.expected, None, reason)
    return _answered(kind.name, kind.what, kind.expected, outcome.answers[0])


def _through(
    launcher: Sequence[str], environ: Mapping[str, str], token: str, folder: str, limit: float
) -> List[Dict[str, Any]]:
    """One row for each process that the launcher started, and one for those that gave no answer."""
    outcome = execute(probe_kinds.launched(launcher, token, folder), environ, token, folder, limit)
    answers = sorted(outcome.answers, key=lambda facts: (_number(facts["rank"]), facts["host"], facts["pid"]))
    rows = [_answered("rank %s" % (facts["rank"] or "-"), "", True, facts) for facts in answers]
    wanted = max([_number(facts["world_size"]) for facts in answers], default=1)
    if len(answers) < wanted:
        reason = "%d of %d processes gave no answer" % (wanted - len(answers), wanted) if answers else ""
        rows.append(
            _row("others" if answers else "none", "", True, None,
                 reason or probe_kinds.no_answer(outcome.code, limit, outcome.errors))
        )  # fmt: skip
    elif outcome.code != 0:
        reason = "the launcher was ended at its limit of %g s" % limit
        if outcome.code is not None:
            reason = "the launcher itself ended with code %d" % outcome.code
        rows.append(_row("launcher", "", True, None, reason))
    if len(answers) < wanted or outcome.code != 0:
        lines = outcome.errors.rstrip().splitlines()[-_SHOWN_LINES:]
        print(
            "\n".join("%s: %s" % (os.path.basename(launcher[0]), one_line(line)) for line in lines),
            file=sys.stderr,
        )
    return rows


def execute(
    command: Sequence[str], environ: Mapping[str, str], token: str, folder: str, limit: float
) -> Outcome:
    """Run a command in a process group of its own, at most ``limit`` seconds, and collect the answers.

    Raises OSError if the command cannot be started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # Files rather than pipes: a grandchild that lives on would keep a pipe open, and us waiting.
        child = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        code: Optional[int] = None
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(child)
        out.seek(0)
        err.seek(0)
        texts = [stream.read().decode("utf-8", "replace") for stream in (out, err)]
    return Outcome(code, answers_in(texts[0] + "\n" + texts[1], token, folder), texts[1])


def _end(child: subprocess.Popen) -> None:
    """End the child and what is left of its process group."""
    if os.name == "posix":
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # nobody is left, or only zombies (macOS)
            pass
    elif child.poll() is None:
        child.kill()
    child.wait()


def answers_in(output: str, token: str, folder: str) -> List[Dict[str, Any]]:
    """The answers in what was printed, whatever stands before them on a line, and those in ``folder``."""
    texts = []
    mark = "%s:%s " % (probe_child.MARK, token)
    for line in output.splitlines():
        _, found, text = line.partition(mark)
        if found:
            texts.append(text)
    for name in sorted(os.listdir(folder)):
        if name.endswith(".json"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                texts.append(file.read())
    answers: Dict[Any, Dict[str, Any]] = {}
    for text in texts:
        try:
            facts, _ = json.JSONDecoder().raw_decode(text)
            answers[(facts["host"], facts["pid"])] = facts
        except (ValueError, KeyError, TypeError):  # another rank's line ran into it
            continue
    return list(answers.values())


def _answered(name: str, what: str, expected: bool, facts: Mapping[str, Any]) -> Dict[str, Any]:
    reason = probe_kinds.why_not(facts, propagation.installation())
    return _row(name, what, expected, facts, reason)


def _row(
    name: str,
    what: str,
    expected: bool,
    facts: Optional[Mapping[str, Any]],
    reason: str,
    skipped: bool = False,
) -> Dict[str, Any]:
    known = facts or {}
    return {
        "kind": name,
        "what": what,
        "expected": expected,
        "skipped": skipped,
        "armed": bool(known.get("armed")),
        "reason": reason,
        "engine": known.get("engine", ""),
        "applied": known.get("applied", []),
        "host": known.get("host", ""),
        "rank": known.get("rank", ""),
        "pid": known.get("pid"),
        "python": known.get("python", ""),
    }


def _text(rows: Sequence[Mapping[str, Any]], good: bool, launched: bool, problem: str) -> str:
    cells = []
    for row in rows:
        state = "armed" if row["armed"] else "skipped" if row["skipped"] else "not armed"
        why = row["reason"] or (
            "on, %d patches applied" % len(row["applied"]) if row["engine"] == "on" else ""
        )
        if not row["expected"]:
            why = "as expected: " + why if not row["armed"] else "unexpected, but harmless"
        place = [row["host"]] if launched else []
        cells.append([row["kind"], state, *place, row["pid"] or "-", why])
    header = ["process", "state", *(["host"] if launched else []), "pid", "note"]
    wanted = [row for row in rows if row["expected"] and not row["skipped"]]
    count = sum(row["armed"] for row in wanted)
    lines = ["%s%d of %d processes armed." % ("" if good else "Only ", count, len(wanted))]
    if problem:
        lines.append(one_line(problem[0].upper() + problem[1:] + "."))
    lines.append(table(cells, header, colours=colours_wanted()))
    pythons = sorted({row["python"] for row in rows if row["python"]})
    lines.append("  Python: " + one_line(", ".join(pythons)))
    return "\n".join(lines)


def _number(text: Any) -> int:
    try:
        return int(text)
    except (TypeError, ValueError):
        return 0
