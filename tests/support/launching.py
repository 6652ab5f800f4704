"""Launches as Ultralytics makes them: a parent, torch's launcher and two ranks, each a process of its own."""

from __future__ import annotations

import os
import pathlib
import sys
import time
from typing import Iterable, List, Sequence

from support import environment, ranks
from support.processes import Processes, Running, is_running

RELAUNCH = environment.TESTS / "standins" / "relaunch"  # for Ultralytics
TORCHS_LAUNCHER = environment.TESTS / "standins" / "torchs_launcher"  # for torch
OFF = {"DDP_PATCHES_SKIP": "ultralytics.launch"}
SLEEP = "time.sleep(1200)"  # what a rank does that is to be ended

PARENT = """
    import ddp_patches.auto
    import os, subprocess, sys
    from ultralytics.engine.trainer import BaseTrainer

    exec(os.environ["PARENT_FIRST"])
    try:
        BaseTrainer().train()
    except subprocess.CalledProcessError as error:
        import pickle
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        print("%s, %d: %s" % (type(error).__name__, error.returncode, error), flush=True)
        raise
    print("train() returned", flush=True)
"""

# Of rank 0, whose peer rank 1 has just failed: in its next collective, within the same second. What follows
# is rank 1's.
PEER = """
mark = os.path.join(os.environ["TMPDIR"], "rank1")
if rank == 1:
    open(mark, "w").close()
else:
    while not os.path.exists(mark):
        time.sleep(0.01)
    time.sleep(0.3)
    raise RuntimeError("Connection closed by peer")
"""
FAILS = (
    PEER
    + """
def augment():
    return {}["mosaic"]
augment()
"""
)
KILLED = PEER + "os.kill(os.getpid(), 9)"


def launch(
    processes: Processes,
    rank_does: str,
    name: str = "parent",
    *,
    prefix: Sequence[str] = (),
    parent_first: str = "",
    port: int = 0,
    standins: Sequence[pathlib.Path] = (RELAUNCH,),
    **variables: str,
) -> Running:
    """Start a parent with a stand-in for Ultralytics.

    Args:
        rank_does: what a rank runs, and `parent_first` what the parent runs before `train()`.
        prefix: words before the parent's command.
        port: the port that the stand-in finds free.
    """
    folder = processes.folder / name
    folder.mkdir(exist_ok=True)
    known = environment.clean(
        folder,
        *standins,
        RANK_DOES=rank_does,
        PARENT_FIRST=parent_first,
        PORT=str(port or ranks.free_port()),
        TMPDIR=str(folder),
        **{"DDP_PATCHES_SKIP": "ultralytics.setup_ddp", **variables},
    )
    path = ranks.script(folder, PARENT, "parent.py")
    return processes.start([*prefix, sys.executable, path], known, name)


def both_ranks_begin(running: Running, limit: float) -> List[int]:
    """Wait until both ranks are in their training; their pids, by rank."""
    found = []
    for rank in (0, 1):
        start = "RANK %d begins, pid " % rank
        running.wait_for(start, limit)
        (rest,) = [line.partition(start)[2] for line in running.stdout().splitlines() if start in line]
        found.append(int(rest))
    return found


def files_left(folder: pathlib.Path) -> List[pathlib.Path]:
    """What upstream has written for its workers, and we for the launch, below `folder`."""
    ours = ("_temp_", "ddp_patches-launch-")
    return [path for path in folder.rglob("*") if path.name.startswith(ours)]


def gone(pids: Iterable[int], limit: float = 60) -> bool:
    """Whether all of the processes have ended within `limit` seconds."""
    deadline = time.monotonic() + limit
    pids = list(pids)
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(is_running, pids))


def parent_of(pid: int) -> int:
    """The pid of a process's parent."""
    with open("/proc/%d/stat" % pid, encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def children_of(pid: int) -> List[int]:
    """The pids of a process's children."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if parent_of(int(name)) == pid:
                found.append(int(name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def ended(running: Sequence[Running], limit: float) -> List[Running]:
    """Those that have ended by themselves, as soon as there is one; none after `limit` seconds."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        found = [each for each in running if each.popen.poll() is not None]
        if found:
            return found
        time.sleep(0.1)
    return []
