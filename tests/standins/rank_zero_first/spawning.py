"""Runs a program as WORLD_SIZE ranks of `torch.multiprocessing.spawn`: `spawning.py PROGRAM ARGUMENT…`."""

import os
import runpy
import sys

import torch.multiprocessing


def child(rank, program):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    program = sys.argv.pop(1)
    torch.multiprocessing.spawn(child, (program,), nprocs=int(os.environ["WORLD_SIZE"]))
