"""Two gloo ranks beside every release: the group's limit, rank-0-first, the stall report and the end.

What each of them does in detail is shown on torch alone, and on single releases, by tests of their own. Here
each release is there, imported, with all patches that it gets.
"""

from __future__ import annotations

import re

import pytest

from support import jobs, ranks, releases, stacks
from support.processes import Processes
from support.stacks import STACKS

LIMIT_SECONDS = 200  # the old OpenMMLab stack takes 15 s to import on two free cores

PROGRAM = """
    import atexit, importlib, os, sys, time
    # Registered first, so called last. Upstream's ranks may abort at their end: it has been said by then.
    atexit.register(lambda: job.say(group_at_end=dist.is_initialized()))
    if os.environ.get("DDP_PATCHES") != "0":
        import ddp_patches.auto
    import rank_program as job
    import torch.distributed as dist
    for name in os.environ["IMPORTED"].split():
        importlib.import_module(name)

    folder, both = sys.argv[1:]
    places = (place.partition(":") for place in os.environ["HELD"].split())
    held = {name: getattr(sys.modules[module], name) for module, _, name in places}
    zero_first, reduce_mean = held.get("torch_distributed_zero_first"), held.get("reduce_mean")

    def waits_for_a_file():
        while not os.path.exists(os.path.join(folder, "release")):
            time.sleep(0.05)

    job.meet(folder, "imported")
    open(os.path.join(folder, "ready"), "w").close()
    for name in ("on", "off"):  # the limit of the one that is off counts from here
        job.wait_for(os.path.join(both, name, "ready"))
    job.start(60)
    group = dist.distributed_c10d._get_default_group()
    if hasattr(group, "_get_backend"):  # before torch 2.0 the group is the backend
        group = group._get_backend(job.torch.device("cpu"))
    limit = group.options._timeout
    job.total()
    if zero_first is not None:
        with zero_first(job.LOCAL_RANK):
            entered = time.time()
            time.sleep(2 if job.RANK == 0 else 0)
            left = time.time()
        job.say(entered=entered, left=left)
    if job.RANK == 1:
        waits_for_a_file()
    if reduce_mean is None:
        total = job.total()
    else:
        total = 2 * reduce_mean(job.torch.tensor([job.RANK + 1.0])).item()
    job.say(limit=limit.total_seconds(), total=total)
    """


def start(folder, stack, **variables):
    """Two ranks with release ``stack`` imported."""
    folder.mkdir()
    more = {"IMPORTED": STACKS[stack].modules, "HELD": STACKS[stack].held, "LEAVE_GROUPS": "1", **variables}
    environ = stacks.environment_of(folder, stack, **more)
    environ["PYTHONPATH"] += ":" + str(jobs.STANDIN)
    processes = Processes(folder)
    return processes, ranks.start(processes, PROGRAM, environ, 2, arguments=[folder, folder.parent])


def answers(result):
    """All that a rank has said, as one."""
    return {name: value for answer in result.answers for name, value in answer.items()}


EVERYDAY = ("ultralytics/" + releases.NEWEST_ULTRALYTICS, "mmdet/3.3.0")


@pytest.mark.parametrize(
    "stack",
    [pytest.param(name, marks=[] if name in EVERYDAY else [pytest.mark.matrix]) for name in STACKS],
)
def test_limit_rank_0_first_stall_report_and_end(tmp_path, stack):
    """The job of upstream alone stands as long, and says nothing of it."""
    settings = {"DDP_PATCHES_TIMEOUT": "400s", "DDP_PATCHES_STALL_AFTER": "3s"}
    processes, on = start(tmp_path / "on", stack, **settings)
    others, off = start(tmp_path / "off", stack, DDP_PATCHES="0")
    try:
        on[0].wait_for("STALL, ", LIMIT_SECONDS)
        for job in ("on", "off"):
            (tmp_path / job / "release").write_text("")
        patched = [answers(result.check()) for result in on.wait(60)]
        upstream = [answers(result) for result in off.wait(60)]
    finally:
        processes.end()
        others.end()
    for with_us, alone in zip(patched, upstream):
        assert (with_us["total"], alone["total"]) == (3, 3)
        assert (with_us["limit"], alone["limit"]) == (400, 60)
        assert (with_us["group_at_end"], alone["group_at_end"]) == (False, True)
    if "torch_distributed_zero_first" in STACKS[stack].held:
        for said in (patched, upstream):
            assert said[0]["entered"] < said[0]["left"] <= said[1]["entered"]
    (line,) = (line for line in on[0].stderr().splitlines() if "STALL, " in line)
    assert re.search(r"Rank 1 \(.*\) is at \S*program.py:\d+ in waits_for_a_file", line), line
    assert "STALL" not in off[0].stderr()
