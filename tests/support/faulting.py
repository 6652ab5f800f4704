"""Jobs in which something goes wrong at a known place, and what becomes of all their processes.

Ranks that end at once are started one by one: a launcher would end the others, and hide what they do by
themselves. Those that do not end are started by torchrun, and a parent's end is tried with a parent as
Ultralytics has one.
"""

from __future__ import annotations

import json
import signal
import time
from typing import Any, Dict, List, NamedTuple, Optional

from ddp_patches import propagation
from support import environment, launching, ranks
from support.processes import Processes, Running, is_running

RANK_ZERO_FIRST = environment.TESTS / "standins" / "rank_zero_first"
PROGRAM = RANK_ZERO_FIRST / "faults.py"

OWN_LIMIT_SECONDS = 15  # of the group; shorter ones are over before a busy machine's ranks have met
SETTINGS: Dict[str, Any] = {
    "DDP_PATCHES_TIMEOUT": "40s",
    "DDP_PATCHES_ZERO_FIRST_TIMEOUT": "25s",
    "DDP_PATCHES_STALL_AFTER": "3s",
    "DDP_PATCHES_EXIT_TIMEOUT": "5s",
}
_STARTED_SECONDS = 120
_GONE_SECONDS = 10.0  # for a loader worker to see that its rank is gone

SIGNALS = {"ctrl-c": signal.SIGINT, "parent dies": signal.SIGKILL}

# What stands in the place of the ultralytics that has no such block.
_WITH_ZERO_FIRST = """
import ultralytics.utils
ultralytics.utils.__path__.append(%r)
import faults
faults.main("sleep", %r, %d)
"""


class Outcome(NamedTuple):
    """What became of a job.

    ``codes``: exit code by the name of the process, None if it had not ended; ``running``: which ranks had
    not; ``left``: processes that were there when all the others had ended.
    """

    codes: Dict[str, Optional[int]]
    running: List[int]
    left: List[int]
    log: str


def start(processes: Processes, started: str, fault: str, place: str, patched: bool = True) -> List[Running]:
    """Start a job of two ranks; ``started``: by ``ranks``, ``torchrun`` or a ``parent``."""
    folder = processes.folder
    if started == "parent":
        rank_does = _WITH_ZERO_FIRST % (
            str(RANK_ZERO_FIRST / "ultralytics" / "utils"), place, OWN_LIMIT_SECONDS
        )  # fmt: skip
        standins = (launching.RELAUNCH, RANK_ZERO_FIRST)
        return [launching.launch(processes, rank_does, standins=standins, **SETTINGS)]
    environ = environment.clean(folder, RANK_ZERO_FIRST, **SETTINGS)
    if patched:
        propagation.arm(environ)
    else:
        environ["DDP_PATCHES"] = "0"
    arguments = [fault, place, OWN_LIMIT_SECONDS]
    if started == "ranks":
        return ranks.start(processes, PROGRAM, environ, 2, arguments=arguments).running
    command = ranks.torchrun_command(2, PROGRAM, *arguments)
    return [processes.start(command, environ, name="torchrun")]


def watch(running: List[Running], fault: str, limit: float) -> Outcome:
    """Wait for the fault, then until all have ended, at most ``limit`` seconds; and end what is left."""
    _wait_for_the_fault(running)
    if fault in SIGNALS:
        running[0].send(SIGNALS[fault])
    deadline = time.monotonic() + limit
    while any(each.popen.poll() is None for each in running) and time.monotonic() < deadline:
        time.sleep(0.1)
    codes = {each.name: each.popen.poll() for each in running}
    deadline = time.monotonic() + _GONE_SECONDS
    while None not in codes.values() and _descendants(running) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = _descendants(running)
    alive = [said["rank"] for said in _said(running) if "begun" in said and is_running(said["begun"])]
    for each in running:
        each.end()
    return Outcome(codes, alive, left, "".join(each.stdout() + each.stderr() for each in running))


def _wait_for_the_fault(running: List[Running]) -> None:
    deadline = time.monotonic() + _STARTED_SECONDS
    while time.monotonic() < deadline:
        if any("struck" in said for said in _said(running)):
            return
        if all(each.popen.poll() is not None for each in running):
            break
        time.sleep(0.05)
    raise AssertionError("no rank came to the fault:\n%s" % "\n".join(each.stderr() for each in running))


def _said(running: List[Running]) -> List[Dict[str, Any]]:
    lines = [line for each in running for line in each.stdout().splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def _descendants(running: List[Running]) -> List[int]:
    return sorted(pid for each in running for pid in each.descendants())
