"""What the ranks of tests/distributed have in common. Imported after ddp_patches, if that is on."""

import atexit
import datetime
import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LOCAL_RANK = int(os.environ["LOCAL_RANK"])


def _end():
    if dist.is_initialized() and not hasattr(sys, "last_value"):
        time.sleep(0.1)  # torch 2.0 hangs in a destruction right after a collective
        dist.destroy_process_group()


# One in eight of upstream's ranks aborts at its end if nobody destroys the group. Only the tests of that
# leave it alone.
if os.environ.get("DDP_PATCHES") == "0" and "LEAVE_GROUPS" not in os.environ:
    atexit.register(_end)


def say(**answer):
    """Print an answer for the test, in one piece: torchrun's ranks share their output."""
    os.write(1, (json.dumps(dict(answer, rank=RANK)) + "\n").encode())


def start(seconds=None, folder=None, name=""):
    """Make the default group over gloo; `seconds`: its timeout.

    With `folder` and `name`, which no other group has, at a new port. Rank 0 looks for it now: one that was
    free when the test began may have become another connection's.
    """
    if folder is not None:
        os.environ["MASTER_PORT"] = _new_port(os.path.join(folder, "port." + name.replace(" ", "_")))
    limit = {} if seconds is None else {"timeout": datetime.timedelta(seconds=seconds)}
    dist.init_process_group("gloo", **limit)


def _new_port(path):
    if RANK == 0:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            with open(path + ".new", "w") as file:
                file.write(str(listener.getsockname()[1]))
        os.rename(path + ".new", path)
    wait_for(path)
    with open(path) as file:
        return file.read()


def total():
    """The sum of rank + 1 over all ranks: right only if nobody is one collective ahead."""
    value = torch.tensor([RANK + 1.0])
    dist.all_reduce(value)
    return value.item()


def wait_for(path, seconds=120):
    """Until a file is there."""
    deadline = time.monotonic() + seconds
    while not os.path.exists(path):
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


def meet(folder, name):
    """Wait until every rank has come here. Through files: no collective, no store."""
    open(os.path.join(folder, "%s.%d" % (name, RANK)), "w").close()
    for rank in range(WORLD_SIZE):
        wait_for(os.path.join(folder, "%s.%d" % (name, rank)))


class Barriers:
    """Notes when this rank enters the real barrier."""

    def __init__(self):
        self.entered = []
        self._original = dist.barrier
        dist.barrier = self

    def __call__(self, *arguments, **keywords):
        self.entered.append(time.time())
        return self._original(*arguments, **keywords)
