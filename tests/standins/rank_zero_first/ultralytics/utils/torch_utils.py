"""Blocks whose body rank 0 runs first: the others wait in a barrier before theirs."""

import contextlib

import torch.distributed as dist


@contextlib.contextmanager
def torch_distributed_zero_first(local_rank):
    """`local_rank`: -1 outside a job. Without try/finally, as in every release of Ultralytics."""
    in_job = dist.is_available() and dist.is_initialized() and local_rank != -1
    if in_job and local_rank != 0:
        dist.barrier()
    yield
    if in_job and local_rank == 0:
        dist.barrier()
