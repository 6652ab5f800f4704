"""Ultralytics' own rank-0-first block, with real ranks: what a slow leader does to a job.

Newest release (the local rank as argument), and one of those that pass the global rank. Only the block is
exercised here; tests/distributed has the rest of the protocol, on old torch releases too.
"""

from __future__ import annotations

import re

import pytest

from support import layers, ranks, releases
from support.processes import Processes

GLOBAL_RANK = "8.0.132"  # ultralytics.yolo, and device_ids on every backend

PROGRAM = """
    import ddp_patches.auto
    import datetime, json, os, sys, time

    work = json.loads(sys.argv[1])
    import torch, torch.distributed as dist
    try:
        from ultralytics.utils.torch_utils import torch_distributed_zero_first
    except ImportError:
        from ultralytics.yolo.utils.torch_utils import torch_distributed_zero_first

    rank = int(os.environ["RANK"])
    argument = int(os.environ[sys.argv[2]])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=15))
    began = time.time()
    with torch_distributed_zero_first(argument):
        if argument == 0:
            time.sleep(work[rank])
        entered = time.time()
    total = torch.ones(1)
    dist.all_reduce(total)
    print(json.dumps({"rank": rank, "entered": entered - began, "total": total.item()}), flush=True)
    """


def start(processes, version, count, work, argument, nodes=1, **variables):
    environ = layers.ultralytics_environment(
        processes.folder, version, DDP_PATCHES_TIMEOUT="keep", **variables
    )
    arguments = [str(work).replace("'", '"'), argument]
    return ranks.start(processes, PROGRAM, environ, count, nodes, arguments=arguments)


def folders(tmp_path, *names):
    made = []
    for name in names:
        (tmp_path / name).mkdir()
        made.append(Processes(tmp_path / name))
    return made


@pytest.mark.upstream_fault("ultralytics.zero_first")
@pytest.mark.release(name="ultralytics/" + GLOBAL_RANK)
@pytest.mark.release(name="ultralytics/" + releases.NEWEST_ULTRALYTICS)
def test_a_leader_that_works_longer_than_the_groups_limit(tmp_path):
    """Group limit 15 s, rank 0 works 25 s inside the block: every rank goes on.

    Two nodes with leaders of 1 s and 25 s, where the faster node must not time out either; a release that
    passes the global rank, with one leader for both nodes; and upstream, which dies.
    """
    newest = releases.NEWEST_ULTRALYTICS
    nodes, one_leader, off = jobs = folders(tmp_path, "nodes", "one_leader", "off")
    try:
        running_nodes = start(nodes, newest, 4, [1, 0, 25, 0], "LOCAL_RANK", nodes=2)
        running_off = start(off, newest, 2, [25, 0], "LOCAL_RANK", DDP_PATCHES="0")
        # Rank 1 is local rank 0 of the second node, and no leader here.
        running_one = start(one_leader, GLOBAL_RANK, 2, [25, 25], "RANK", nodes=2)

        for running, count in ((running_nodes, 4), (running_one, 2)):
            answers = [result.check().answer for result in running.wait(150)]
            assert [answer["total"] for answer in answers] == [count] * count
            # Nobody's body began before the slowest leader had finished his.
            assert all(answer["entered"] > 20 for answer in answers[1:2] + answers[3:])
        results = running_off.wait(150)
        assert [result.returncode for result in results] == [1, 1], results
        assert any(re.search("[Tt]imed out|closed by peer|reset by peer", r.stderr) for r in results), results
    finally:
        for processes in jobs:
            processes.end()
