"""Ways in which one rank of three keeps the others waiting, one after the other in one job.

``stalls.py KINDS FOLDER CULPRIT``: each kind goes on until the file ``FOLDER/<kind>`` is there. The last one
may be one that cannot end (ranks in different collectives): then the test ends the ranks.
"""

import os
import signal
import sys
import threading
import time

import rank_program as job
import torch
import torch.distributed as dist

FOLDER, CULPRIT = sys.argv[2], int(sys.argv[3])
IS_CULPRIT = job.RANK == CULPRIT


class Data(torch.utils.data.Dataset):
    """One sample, which the culprit's loader worker does not find."""

    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 1

    def __getitem__(self, index):
        while IS_CULPRIT and not os.path.exists(os.path.join(FOLDER, self.kind)):
            time.sleep(0.05)
        return torch.ones(1)


def until_over(kind):
    while not os.path.exists(os.path.join(FOLDER, kind)):
        time.sleep(0.05)


def sleeps(kind):
    if IS_CULPRIT:
        until_over(kind)
    job.total()


def computes(kind):
    while IS_CULPRIT and not os.path.exists(os.path.join(FOLDER, kind)):
        sum(range(10000))
    job.total()


def evaluates(kind):
    """A rank that waits for a program which it has started does not stand still."""
    import subprocess

    if IS_CULPRIT:
        code = "import os\nwhile not os.path.exists(%r): sum(range(10000))" % os.path.join(FOLDER, kind)
        subprocess.run([sys.executable, "-S", "-c", code], check=True)
    job.total()


def swallows(kind):
    """Leaves the step out after an error, and goes on to something else."""
    try:
        if IS_CULPRIT:
            raise RuntimeError("out of memory")
        job.total()
    except RuntimeError:
        until_over(kind)
        job.total()


def loader(kind):
    method = kind.partition("-")[2]
    for _ in torch.utils.data.DataLoader(Data(kind), num_workers=1, multiprocessing_context=method):
        pass
    job.total()


def subgroup(kind):
    """The third rank is in none of this."""
    pair = dist.new_group([0, 1])
    if job.RANK == 1 - CULPRIT:
        dist.all_reduce(torch.ones(1), group=pair)
    elif IS_CULPRIT:
        until_over(kind)
        dist.all_reduce(torch.ones(1), group=pair)
    else:
        until_over(kind)
    job.total()


def receives(kind):
    if IS_CULPRIT:
        until_over(kind)
        dist.send(torch.ones(1), 1 - CULPRIT)
    elif job.RANK == 1 - CULPRIT:
        dist.recv(torch.ones(1), CULPRIT)
    job.total()


def lock(kind):
    """torch's build lock, left behind by a build that was killed."""
    from torch.utils.file_baton import FileBaton

    if not IS_CULPRIT:
        FileBaton(os.path.join(FOLDER, "lock-file")).wait()
    job.total()


def again(kind):
    """The group is destroyed and made anew."""
    dist.destroy_process_group()
    job.start(folder=FOLDER, name=kind)
    sleeps(kind)


# ---- those that cannot end


def collectives(kind):
    """Each of two groups holds all ranks; the culprit is in the other one."""
    one, other = dist.new_group(), dist.new_group()
    if IS_CULPRIT:
        dist.broadcast(torch.ones(1), 2, group=other)
    dist.all_reduce(torch.ones(1), group=one)


def forward(kind):
    """DDP's forward exchanges buffers of the model; the others are in a barrier."""
    group = dist.new_group()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(2))
    if IS_CULPRIT:
        model(torch.ones(2, 2))
    dist.barrier(group=group)


def batches(kind):
    """The culprit has one batch less, and is in the barrier after the epoch."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    for _ in range(2 if IS_CULPRIT else 3):
        model(torch.ones(1, 2)).sum().backward()
    dist.barrier()


def killed(kind):
    """Over gloo whoever waits for a dead rank hears of it; these two wait for each other."""
    if IS_CULPRIT:
        time.sleep(3)  # so that all know of it
        os.kill(os.getpid(), signal.SIGKILL)
    dist.recv(torch.ones(1), 2 - job.RANK)


def leaves(kind):
    """The end of the program, where a thread of the user's goes on."""
    if IS_CULPRIT:
        threading.Thread(target=time.sleep, args=(600,)).start()
    else:
        job.total()


def main():
    job.start()
    job.total()
    job.say(pid=os.getpid())
    for kind in sys.argv[1].split(","):
        globals()[kind.partition("-")[0]](kind)
        job.say(over=kind)


if __name__ == "__main__":
    main()
