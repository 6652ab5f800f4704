"""The two ways in which tests start ranks, on the installed torch: each computes what depends on all."""

from __future__ import annotations

from support import environment, ranks

SUM_OF_RANKS = """
    import json
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(total)
    print(json.dumps({"rank": dist.get_rank(), "total": total.item()}), flush=True)
    dist.destroy_process_group()
    """


def test_ranks_started_one_by_one_form_a_job(processes, tmp_path):
    results = ranks.run(processes, SUM_OF_RANKS, environment.clean(tmp_path))
    assert [result.check().answer for result in results] == [
        {"rank": 0, "total": 3.0},
        {"rank": 1, "total": 3.0},
    ]


def test_torchrun_keeps_the_output_of_each_rank(processes, tmp_path):
    job = ranks.torchrun(processes, SUM_OF_RANKS, environment.clean(tmp_path))
    job.launcher.check()
    assert not job.launcher.leftovers
    # Gloo of torch 2.9 prints a line of its own first.
    assert [job.stdout(rank).splitlines()[-1] for rank in (0, 1)] == [
        '{"rank": 0, "total": 3.0}',
        '{"rank": 1, "total": 3.0}',
    ]
