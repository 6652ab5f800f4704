"""The doors of OpenMMLab's users, through mmdet's own tools/train.py and dist_train.sh on two ranks.

A training on the CPU needs the rehearsal's stand-ins. They are part of what a door loads: under `rehearse`
and without its start-up folder on PYTHONPATH, a process trains if the door in question works, and else it
ends where it selects a GPU.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys

import pytest

from support import coco, detectors, layers, ranks

LIMIT_SECONDS = 280

OURS = [sys.executable, "-m", "ddp_patches"]
OLD_STACK_IN_MATRIX = ["mmdet/3.3.0", pytest.param("mmdet/2.28.2", marks=pytest.mark.matrix)]
LINE = "custom_imports = dict(imports=['ddp_patches.auto'], allow_failed_imports=False)\n"


def configuration(processes, layer, more=""):
    data = coco.make(processes.folder / "data", train=8, val=4)
    return detectors.configuration(processes.folder, layer, data, more)


def unarmed_train(processes, layer, configuration, *more):
    """torchrun with train.py, and with a PYTHONPATH that has lost what `rehearse` put there."""
    environ = layers.openmmlab_environment(processes.folder, layer)
    program = detectors.mim(layer) / "tools" / "train.py"
    command = ranks.torchrun_command(2, program, configuration, "--launcher", "pytorch", *more)
    command = [*OURS, "rehearse", "--", "env", "PYTHONPATH=" + environ["PYTHONPATH"], *command]
    return processes.run(command, environ, limit=LIMIT_SECONDS)


def assert_trained_with_patches(processes, layer, result):
    """Rank 0's line at the start, an epoch with its validation, and the patches of both ranks."""
    result.check()
    shown = result.stdout + result.stderr
    version = re.escape(layer.partition("/")[2])
    assert re.search(r"ddp_patches \S+ is on for \d of 2 ranks .* mmdet %s, .* 0 failed" % version, shown), (
        shown
    )
    assert re.search(r"Epoch\(val\) \[1\]\[[24](/2)?\]\s+.*bbox_mAP: ", shown), shown
    environ = layers.openmmlab_environment(processes.folder, layer)
    command = [*OURS, "status", "--run", "newest", "--json"]
    status = json.loads(processes.run(command, environ).check().stdout)
    assert [rank["rank"] for rank in status["ranks"]] == [0, 1]
    for rank in status["ranks"]:
        applied = {row["id"] for row in rank["patches"] if row["state"] == "applied"}
        assert {"mmdet.reduce_mean", "torch.process_group_timeout"} <= applied


@pytest.mark.parametrize("layer", OLD_STACK_IN_MATRIX)
def test_a_line_in_the_configuration(processes, layer):
    """mmengine's Config and mmcv's import what it names, before the process group is made."""
    result = unarmed_train(processes, layer, configuration(processes, layer, LINE))
    assert_trained_with_patches(processes, layer, result)


@pytest.mark.parametrize("layer", OLD_STACK_IN_MATRIX)
def test_options_are_merged_when_the_imports_are_done(processes, layer):
    """Upstream's limit, which the README names. The day this fails, the README has to be changed."""
    option = ["--cfg-options", "custom_imports.imports=[ddp_patches.auto]"]
    result = unarmed_train(processes, layer, configuration(processes, layer), *option)
    assert result.returncode == 1
    assert "set_device" in result.stderr
    assert not re.search(r"ddp_patches \S+ is on", result.stderr)


@pytest.mark.release(name="mmdet/3.3.0")
def test_the_command_with_a_shell_script(processes):
    """`ddp-patches run -- bash tools/dist_train.sh CONFIG 2`, whose Python is the one that PATH finds."""
    layer = "mmdet/3.3.0"
    environ = layers.openmmlab_environment(processes.folder, layer)
    path = str(pathlib.Path(sys.executable).parent) + os.pathsep + environ["PATH"]
    environ.update(PATH=path, PORT=str(ranks.free_port()))
    command = ["bash", detectors.mim(layer) / "tools" / "dist_train.sh", configuration(processes, layer), "2"]
    # The inner command is the user's; the outer one lends its stand-ins to the CPU.
    command = [*OURS, "rehearse", "--", *OURS, "run", "--", *command]
    result = processes.run(command, environ, limit=LIMIT_SECONDS)
    assert_trained_with_patches(processes, layer, result)


# What `srun` does with a command: it starts one process for each task, and ends with the worst of them.
SRUN = """
for task in 0 1; do SLURM_PROCID=$task SLURM_LOCALID=$task "$@" & tasks="$tasks $!"; done
for task in $tasks; do wait $task || worst=$?; done
exit ${worst:-0}
"""


@pytest.mark.matrix
@pytest.mark.release(name="mmdet/2.28.2")
def test_tasks_of_srun(processes):
    """`srun ddp-patches run -- python tools/train.py CONFIG --launcher slurm`: each task arms itself."""
    layer = "mmdet/2.28.2"
    job = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NODELIST": "gpu003"}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ranks.free_port())}
    environ = layers.openmmlab_environment(processes.folder, layer, **job, **place)
    train = [detectors.mim(layer) / "tools" / "train.py", configuration(processes, layer)]
    command = ["sh", "-c", SRUN, "srun", *OURS, "run", "--", sys.executable, *train, "--launcher", "slurm"]
    result = processes.run([*OURS, "rehearse", "--", *command], environ, limit=LIMIT_SECONDS)
    assert_trained_with_patches(processes, layer, result)
