"""YOLOv5's rank-0-first block with real ranks: the distribution, and a checkout with its `utils` package."""

from __future__ import annotations

import ast
import sys

import pytest

from support import environment, layers, made_up, ranks
from support.processes import Processes

# The distribution imports the newer package for its download functions.
ULTRALYTICS = "8.3.190"
DISTRIBUTIONS = ["yolov5/7.0.14", "yolov5/6.2.3"]

PROGRAM = """
    import ddp_patches.auto
    import datetime, importlib, json, os, sys, time
    import torch, torch.distributed as dist

    module = importlib.import_module(sys.argv[1])
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=15))
    began = time.time()
    with module.torch_distributed_zero_first(rank):
        if rank == 0:
            time.sleep(float(sys.argv[2]))
        entered = time.time()
    total = torch.ones(1)
    dist.all_reduce(total)
    from ddp_patches.engine import ledger
    states = {row.target: [row.state, row.reason] for row in ledger.rows() if row.id == "yolov5.zero_first"}
    answer = json.dumps({"entered": entered - began, "total": total.item(), "states": states})
    os.write(1, (answer + "\\n").encode())  # in one piece: ranks share their output
    """


def start(folder, module, *arguments, release=None, **variables):
    folder.mkdir(exist_ok=True)
    paths = [folder, environment.CPU_VISION]
    if release is not None:
        paths += [layers.layer(release), layers.ultralytics(ULTRALYTICS)]
    variables = {"DDP_PATCHES_TIMEOUT": "keep", "YOLO_AUTOINSTALL": "false", **variables}
    environ = environment.clean(folder, *paths, **variables)
    return ranks.start(Processes(folder), PROGRAM, environ, 2, arguments=[module, *arguments])


def checkout(folder, change=lambda text: text):
    """A folder in the shape of YOLOv5's repository, with the distribution's own function."""
    source = layers.layer(DISTRIBUTIONS[0]) / "yolov5" / "utils" / "torch_utils.py"
    text = source.read_text(encoding="utf-8")
    (function,) = (
        node for node in ast.parse(text).body if getattr(node, "name", "") == "torch_distributed_zero_first"
    )
    lines = text.splitlines()[function.decorator_list[0].lineno - 1 : function.end_lineno]
    head = ["from contextlib import contextmanager", "import torch.distributed as dist", ""]
    made_up.write_files(
        folder, {"utils/__init__.py": "", "utils/torch_utils.py": change("\n".join([*head, *lines])) + "\n"}
    )
    return folder


@pytest.mark.parametrize("release", DISTRIBUTIONS)
def test_a_leader_that_works_longer_than_the_groups_limit(tmp_path, release):
    """Group limit 15 s, rank 0 works 25 s inside the block."""
    answers = [
        rank.check().answer
        for rank in start(tmp_path / "job", "yolov5.utils.torch_utils", "25", release=release).wait(150)
    ]
    for answer in answers:
        assert answer["total"] == 2
        state, _ = answer["states"]["yolov5.utils.torch_utils:torch_distributed_zero_first"]
        assert state == "applied"
    assert answers[1]["entered"] > 24


def train(processes, name, **variables):
    """`ddp-patches run -- torchrun … train.py`, as the user of a checkout types it in its folder."""
    folder = processes.folder / name
    folder.mkdir()
    program = PROGRAM.replace("import ddp_patches.auto\n", "\n")
    path = ranks.script(checkout(folder), program, "train.py")
    torchrun = ranks.torchrun_command(2, path.name, "utils.torch_utils", 25)
    command = [sys.executable, "-m", "ddp_patches", "run", "--", *torchrun]
    environ = environment.clean(
        folder,
        environment.CPU_VISION,
        **{"DDP_PATCHES_TIMEOUT": "keep", "PYTHONUNBUFFERED": "1", **variables},
    )
    return processes.start(command, environ, name, folder)


@pytest.mark.upstream_fault("yolov5.zero_first")
@pytest.mark.release(name=DISTRIBUTIONS[0])
def test_a_checkout(processes):
    """Upstream alone dies in its barrier; with the patch the job goes on."""
    ours = train(processes, "ours")
    upstream = train(processes, "upstream", DDP_PATCHES_SKIP="yolov5.zero_first")
    answers = ours.wait(150).check().answers
    assert len(answers) == 2, ours.wait(0)
    for answer in answers:
        state, _ = answer["states"]["utils.torch_utils:torch_distributed_zero_first"]
        assert state == "applied" and answer["total"] == 2
    assert "Timed out waiting 15000ms" in upstream.wait(150).check(1).stderr


@pytest.mark.release(name=DISTRIBUTIONS[0])
def test_a_strangers_utils_package_is_left_alone(tmp_path):
    """Many projects have a module of that name; one whose function differs by a word is not YOLOv5's."""
    changed = checkout(
        tmp_path / "job", lambda text: text.replace("local_rank == 0", "local_rank in (0, -1)")
    )
    for result in start(changed, "utils.torch_utils", "0").wait(100):
        state, reason = result.check().answer["states"]["utils.torch_utils:torch_distributed_zero_first"]
        assert state == "skipped"
        assert reason.startswith("this is not YOLOv5's function")
