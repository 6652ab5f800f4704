"""The torch half of a rehearsal: a rank written for GPUs runs on the CPU, over gloo.

Needs no framework. A torch without NCCL refuses `init_process_group("nccl")`, and one with NCCL refuses it
without a GPU: so each of these fails without the stand-ins, which the last test shows.
"""

from __future__ import annotations

import sys

import pytest

from support import environment, ranks

# What a training script does on each rank, as torch's own tutorials write it.
RANK = """
    import json, os, sys, time
    import ddp_patches  # for its status
    import torch
    import torch.distributed as dist

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "nccl")
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(2, 1).cuda(local_rank), device_ids=[local_rank], output_device=local_rank
    )
    model(torch.full((4, 2), float(dist.get_rank()))).sum().backward()
    group = dist.new_group([0, 1], backend="nccl")
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    flag = torch.tensor(dist.get_rank() == 0)
    dist.broadcast(flag, src=0)
    dist.barrier(device_ids=[local_rank])
    answer = json.dumps({
        "rank": dist.get_rank(),
        "backends": [dist.get_backend(), dist.get_backend(group)],
        "gradient": model.module.weight.grad.tolist(),
        "total": total.item(),
        "flag": flag.item(),
        "current_device": torch.cuda.current_device(),
        "device_count": torch.cuda.device_count(),
        "available": torch.cuda.is_available(),
        "not applied": [
            row.target for row in ddp_patches.status().patches
            if (row.id.partition(".")[0], row.package) == ("rehearse", "torch") and row.state != "applied"
        ],
    })
    sys.stdout.write(answer + "\\n")  # in one piece: both ranks write to the same pipe
    sys.stdout.flush()
    time.sleep(0.2)  # upstream's ranks abort now and then that destroy right after a collective
    dist.destroy_process_group()
    """


def rehearse(processes, tmp_path, *options, arguments=()):
    """`ddp-patches rehearse … -- torchrun`, both ranks' lines on standard output."""
    command = [sys.executable, "-m", "ddp_patches", "rehearse", "-n", "2", *options, "--"]
    torchrun = ranks.torchrun_command(2, ranks.script(tmp_path, RANK), *arguments)
    variables = environment.clean(tmp_path, TORCH_DISTRIBUTED_DEBUG="OFF")
    return processes.run([*command, *torchrun], variables, limit=150)


@pytest.mark.parametrize(
    ("backend", "options"), [("nccl", []), ("cpu:gloo,cuda:nccl", ["--without-patches"])]
)
def test_ranks_written_for_nccl_run_over_gloo(processes, tmp_path, backend, options):
    """With our own patches, some of which replace the same functions, and without them."""
    result = rehearse(processes, tmp_path, *options, arguments=[backend]).check()
    answers = sorted(result.answers, key=lambda answer: answer["rank"])
    assert answers == [
        {
            "rank": rank,
            "backends": ["gloo", "gloo"],
            "gradient": [[2.0, 2.0]],  # the mean of 4 samples of value 0 and of 4 of value 1
            "total": 2.0,
            "flag": True,  # a bool, which gloo refuses on older versions of torch
            "current_device": rank,
            "device_count": 2,
            "available": False,
            "not applied": [],
        }
        for rank in (0, 1)
    ]
    assert not result.leftovers


def test_the_same_ranks_fail_without_the_stand_ins(processes, tmp_path):
    """Or the test above would show nothing."""
    results = ranks.run(processes, RANK, environment.clean(tmp_path))
    assert [result.returncode for result in results] == [1, 1]
    assert not any(result.answers for result in results)
