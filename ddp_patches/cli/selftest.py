"""``ddp-patches selftest``: does it work on this machine, with this Python and this torch?

Starts two real ranks over gloo, lets rank 0 work longer in a rank-0-first block than the group's limit
allows, lets it fail in a second one, and looks at what the other rank made of it. Then rank 1 stays away
while rank 0 waits for it, and the report has to say so. Needs torch, no framework and no GPU; nothing is
left behind.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Dict, List, Optional, Tuple

from .. import propagation, settings
from ..runtime import sockets
from . import selftest_rank

HELP = "starts two ranks on this machine, with a slow and a failing rank 0 and a stall: does it work here?"
_EXAMPLES = """\
examples:
  ddp-patches selftest
  ddp-patches selftest --json

Takes less than a minute. The exit code is 0 if everything works, 1 if something does not.
"""
_BOUND_SECONDS = 120  # for the whole job; a loaded machine needs most of it to import torch
_RANKS = 2
_STALL_AFTER, _STALL = "2s", "STALL, "


@dataclasses.dataclass
class Step:
    """One thing that should work, whether it did, and what was seen."""

    name: str
    works: bool
    seen: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """0 if everything works."""
    problem = _problem_beforehand()
    if problem:
        steps = [Step("preconditions", False, problem)]
        log = ""
    else:
        if not arguments.json:
            print(
                "Two ranks on this machine: the group's limit is %ds, rank 0 keeps the other waiting %ds. "
                "Takes less than a minute." % (selftest_rank.LIMIT_SECONDS, selftest_rank.SLOW_SECONDS),
                flush=True,
            )
        steps, log = _job()
    works = all(step.works for step in steps)
    if arguments.json:
        print(json.dumps({"works": works, "steps": [dataclasses.asdict(step) for step in steps]}, indent=1))
        return 0 if works else 1
    for step in steps:
        print("%-7s %s: %s" % ("ok" if step.works else "FAILED", step.name, step.seen))
    if not works and log:
        print("\nWhat the ranks printed:\n%s" % log)
    elif log:
        print("\nWhat rank 0 printed of the stall:\n%s" % _reports(log))
    print("\nddp_patches %s on this machine." % ("works" if works else "does NOT work"))
    return 0 if works else 1


def _problem_beforehand() -> str:
    if settings.is_off(os.environ):
        return "DDP_PATCHES=%s turns everything off" % os.environ[settings.SWITCH]
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed in %s; install it as your GPU needs it" % sys.prefix
    return propagation.obstacle()


def _job() -> Tuple[List[Step], str]:
    """Run the ranks; the steps, and what the ranks printed."""
    with tempfile.TemporaryDirectory(prefix="ddp-patches-selftest-") as folder:
        port = sockets.free_port()
        ranks = [_start(rank, port, folder) for rank in range(_RANKS)]
        try:
            codes = _wait(ranks)
        finally:
            left = [rank for rank in ranks if rank.poll() is None]
            for rank in left:
                os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()
        logs = [_read(folder, "log%d" % rank) for rank in range(_RANKS)]
        notes = [_notes(folder, rank) for rank in range(_RANKS)]
    lines = ["[rank %d] %s" % (rank, line) for rank, log in enumerate(logs) for line in log.splitlines()]
    return _judge(codes, notes, logs), "\n".join(lines)


def _start(rank: int, port: int, folder: str) -> subprocess.Popen[bytes]:
    # The user's own settings are left out: the test is about this installation, with known numbers.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(settings.PREFIX)}
    environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(_RANKS), LOCAL_WORLD_SIZE=str(_RANKS),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1",
        DDP_PATCHES_TIMEOUT="keep", DDP_PATCHES_RUN_DIR="none", DDP_PATCHES_STALL_AFTER=_STALL_AFTER,
    )  # fmt: skip
    environ.pop("TORCHELASTIC_RUN_ID", None)
    propagation.arm(environ)
    command = [sys.executable, selftest_rank.__file__, os.path.join(folder, "notes%d" % rank)]
    with open(os.path.join(folder, "log%d" % rank), "wb") as log:
        return subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True, cwd=folder,
        )  # fmt: skip


def _wait(ranks: List[subprocess.Popen[bytes]]) -> List[Optional[int]]:
    deadline = time.monotonic() + _BOUND_SECONDS
    while time.monotonic() < deadline and any(rank.poll() is None for rank in ranks):
        time.sleep(0.1)
    return [rank.returncode for rank in ranks]


def _read(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _notes(folder: str, rank: int) -> Dict[str, str]:
    pairs = (line.partition("\t") for line in _read(folder, "notes%d" % rank).splitlines())
    return {name: text for name, _, text in pairs}


def _reports(log: str) -> str:
    """The first stall report, and the second one with its table, as a user would see them."""
    lines = [line.partition("] ")[2] for line in log.splitlines() if line.startswith("[rank 0] ")]
    first = next((number for number, line in enumerate(lines) if _STALL in line), len(lines))
    return "\n".join("  " + line for line in lines[first:] if line.strip())


def _judge(codes: List[Optional[int]], notes: List[Dict[str, str]], logs: List[str]) -> List[Step]:
    """The steps, from the exit codes (None: ended by us) and from what each rank wrote down."""
    armed = [note.get("armed", "the rank did not get as far as torch") for note in notes]
    start_lines = [line for log in logs for line in log.splitlines() if " is on for " in line]
    waiter, leader = notes[1], notes[0]
    slow = waiter.get("slow", "rank 1 did not come out of the block")
    reason = waiter.get("failing", "rank 1 did not come out of the block")
    stalls = [line.strip() for line in logs[0].splitlines() if _STALL in line]
    named = [line for line in stalls if "Rank 1 is missing." in line and "selftest_rank.py:" in line]
    return [
        Step(
            "patches reach child processes",
            all(text == "yes" for text in armed),
            "; ".join(sorted(set(armed))),
        ),
        Step("start line of rank 0", len(start_lines) == 1, (start_lines or ["none was printed"])[0].strip()),
        Step("a rank 0 slower than the limit", slow == "done" and leader.get("slow") == "done", slow),
        Step("a failing rank 0 is named", selftest_rank.REASON in reason and "rank 0" in reason, reason),
        Step(
            "a stall is reported, with the line of the missing rank",
            bool(named) and leader.get("stall") == "done",
            (named or stalls or ["nothing was printed"])[0].partition("] ")[2] or "nothing was printed",
        ),
        Step(
            "both ranks end",
            codes == [0, 0],
            "exit codes %s" % ", ".join("none, had to be ended" if c is None else str(c) for c in codes),
        ),
    ]
