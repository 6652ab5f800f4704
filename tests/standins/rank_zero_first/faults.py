"""One fault at one place of a job: ``faults.py FAULT PLACE LIMIT``; LIMIT: seconds, of the process group.

Rank 1 strikes, and rank 0 where the place is a leader's. The others do what a training would do there.
"""

import atexit
import os
import signal
import sys
import time

import rank_program as job
import torch
import torch.distributed as dist

STARTS_SECONDS = 2
LEADS_SECONDS = 5  # of a leader whose waiter strikes


def strikes(place):
    """Whether it is this rank."""
    culprit = 0 if place == "leader" else 1
    return culprit == job.RANK


# ---- faults


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def exception():
    raise ValueError("no label for image 17")


def exit():
    sys.exit(3)


def loop():
    while True:
        pass


def sleep():
    while True:
        time.sleep(1000)


def strike(fault):
    job.say(struck=time.time(), pid=os.getpid())
    globals()[fault]()


# ---- places


def init(fault, limit):
    if strikes("init"):
        strike(fault)
    job.start(limit)


def leader(fault, limit):
    from ultralytics.utils.torch_utils import torch_distributed_zero_first

    begin(limit)
    with torch_distributed_zero_first(job.LOCAL_RANK):
        if strikes("leader"):
            time.sleep(1)
            strike(fault)
    job.total()


def waiter(fault, limit):
    """While it waits Python code runs in this rank only where a signal has a handler."""
    from ultralytics.utils.torch_utils import torch_distributed_zero_first

    begin(limit)
    if strikes("waiter"):
        signal.signal(signal.SIGALRM, lambda *_: strike(fault))
        signal.setitimer(signal.ITIMER_REAL, 1)
    with torch_distributed_zero_first(job.LOCAL_RANK):
        if job.LOCAL_RANK == 0:
            time.sleep(LEADS_SECONDS)
    job.total()


def reduction(fault, limit):
    """Between the beginning of one and the wait for it."""
    begin(limit)
    if strikes("reduction"):
        pending = dist.all_reduce(torch.ones(1), async_op=True)
        strike(fault)
        pending.wait()
    else:
        time.sleep(1)
        job.total()
    job.total()


def backward(fault, limit):
    begin(limit)
    model = torch.nn.Linear(2, 2)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    parallel(torch.ones(1, 2)).sum().backward()
    output = parallel(torch.ones(1, 2))
    if strikes("backward"):
        output.register_hook(lambda _: strike(fault))
    output.sum().backward()


class Samples(torch.utils.data.Dataset):
    """The third one is not to be had."""

    def __init__(self, fault):
        self.fault = fault

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 2 and strikes("loader"):
            strike(self.fault)
        return index  # no tensor: the rank could not have it any more when the worker is gone


def loader(fault, limit):
    begin(limit)
    for _ in torch.utils.data.DataLoader(Samples(fault), num_workers=1, collate_fn=list):
        job.total()


def teardown(fault, limit):
    """In a handler of the user's, when the program is over."""
    begin(limit)
    if strikes("teardown"):
        atexit.register(strike, fault)


def begin(limit):
    """And have a job that has gone on for a moment: the ranks know of each other."""
    job.start(limit)
    time.sleep(STARTS_SECONDS)
    job.total()
    job.say(begun=os.getpid())


def main(fault, place, limit):
    globals()[place](fault, float(limit))


if __name__ == "__main__":
    main(*sys.argv[1:])
