"""A two-rank training of YOLOv5 on the CPU, whole: the distribution, and a checkout of our own making.

Guards the reports in which all this began: rank 0 scans labels for longer than the group's limit, the other
ranks are declared dead (https://github.com/ultralytics/yolov5/issues/4400).
"""

from __future__ import annotations

import re
import shutil
import sys

import pytest

from support import dataset, environment, layers, ranks

ULTRALYTICS = "8.3.190"  # the distribution imports it for its checks
NEWEST, OLDEST = "yolov5/7.0.14", "yolov5/6.2.3"
OFFLINE = environment.TESTS / "standins" / "yolov5_offline"
LIMIT_SECONDS = 500  # a minute on two free cores, many times that on busy ones

# The scan outlives the group's limit. That must be long enough for the ranks to reach their first collective.
SLOW = {"SCAN_SECONDS": "45", "GROUP_SECONDS": "30", "DDP_PATCHES_TIMEOUT": "keep"}


def variables(folder, *path, **more):
    return environment.clean(
        folder,
        OFFLINE,
        *path,
        layers.ultralytics(ULTRALYTICS),
        HOME=str(folder),
        MPLBACKEND="Agg",
        TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1",
        WANDB_MODE="disabled",
        YOLO_AUTOINSTALL="false",
        YOLOv5_VERBOSE="true",
        **more,
    )


def torchrun(folder, configuration, *program):
    """`torchrun … train.py` as the user types it."""
    data = dataset.make(folder / "data", train=8, val=4)
    what = ["--weights=", "--cfg=%s" % configuration, "--data=%s" % data, "--project=%s" % (folder / "runs")]
    how = ["--epochs=1", "--imgsz=64", "--batch-size=4", "--workers=0", "--noplots", "--noautoanchor"]
    return ranks.torchrun_command(2, *program, *what, *how)


def distribution(folder, release):
    """The command, and what its processes need on PYTHONPATH."""
    layer = layers.layer(release)
    configuration = layer / "yolov5" / "models" / "yolov5n.yaml"
    return torchrun(folder, configuration, "-m", "yolov5.train"), [layer]


def checkout(folder, release):
    """The same from a folder in the shape of YOLOv5's repository, made of the distribution's files."""
    source, version = layers.layer(release) / "yolov5", release.partition("/")[2]
    made = folder / "checkout"
    made.mkdir(parents=True)
    for part in ("utils", "models", "data"):
        shutil.copytree(str(source / part), str(made / part))
    for part in ("train.py", "val.py", "export.py", "helpers.py"):
        shutil.copy(str(source / part), str(made / part))
    for file in made.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        text = re.sub(r"(?m)^from yolov5 import __version__$", "__version__ = %r" % version, text)
        file.write_text(re.sub(r"\b(from|import) yolov5\.", r"\1 ", text), encoding="utf-8")
    return torchrun(folder, made / "models" / "yolov5n.yaml", made / "train.py"), []


MAKERS = {"distribution": distribution, "checkout": checkout}


def rehearse(processes, shape, release, *options, **more):
    folder = processes.folder / "job"
    folder.mkdir()
    (folder / "Arial.ttf").touch()  # or YOLOv5 downloads it; without plots nobody opens it
    command, path = MAKERS[shape](folder, release)
    line = [sys.executable, "-m", "ddp_patches", "rehearse", "-n", "2", *options, "--", *command]
    return processes.run(line, variables(folder, *path, **more), limit=LIMIT_SECONDS, directory=folder)


def assert_trained(result, folder):
    """One epoch on two ranks, weights, and a validation."""
    result.check()
    assert not result.leftovers, result
    shown = re.sub(r"\x1b\[[0-9;]*[mK]", "", result.stdout + result.stderr)
    assert "1 epochs completed" in shown
    assert re.search(r"REHEARSAL ddp_patches \S+ is on for \d of 2 ranks", shown), shown
    (run,) = (folder / "runs").iterdir()
    assert {path.name for path in (run / "weights").iterdir()} == {"best.pt", "last.pt"}


@pytest.mark.parametrize(
    ("shape", "release"),
    [
        ("distribution", NEWEST),
        pytest.param("distribution", OLDEST, marks=pytest.mark.matrix),
        pytest.param("checkout", NEWEST, marks=pytest.mark.matrix),
    ],
)
def test_a_scan_that_outlives_the_groups_limit(processes, shape, release):
    result = rehearse(processes, shape, release, **SLOW)
    assert_trained(result, processes.folder / "job")
    assert "rank 0 scans the labels" in result.stdout
    assert "rank 1 scans the labels" not in result.stdout


@pytest.mark.matrix
@pytest.mark.release(name=NEWEST)
@pytest.mark.parametrize("shape", ["distribution", "checkout"])
def test_without_the_patch_the_other_rank_dies_in_its_barrier(processes, shape):
    """Shows that the test above can fail."""
    result = rehearse(processes, shape, NEWEST, **SLOW, DDP_PATCHES_SKIP="yolov5.zero_first")
    assert result.returncode == 1, result
    assert "Timed out waiting 30000ms" in result.stderr
