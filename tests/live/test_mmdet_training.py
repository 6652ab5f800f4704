"""Real trainings of mmdet by its own tools/train.py, as CPU processes: one epoch and its validation.

Guards "rehearsal for `tools/train.py CONFIG --launcher pytorch`" and "real training in tests". ATSS averages
the number of positives over the ranks by `reduce_mean`; a quarter of the images is without objects. mAP is 0
after one epoch: the flow is asserted, not the metric.
"""

from __future__ import annotations

import json
import re
import sys

import pytest

from support import coco, detectors, layers, ranks

LIMIT_SECONDS = 280  # some 40 s on two free cores, several times that on busy ones

ONEDL = "mmdet/onedl"
OURS = [sys.executable, "-m", "ddp_patches"]


def train(processes, layer):
    """`python tools/train.py CONFIG --launcher pytorch` of the installed package."""
    data = coco.make(processes.folder / "data")
    configuration = detectors.configuration(processes.folder, layer, data)
    return [
        sys.executable,
        detectors.mim(layer) / "tools" / "train.py",
        configuration,
        "--launcher",
        "pytorch",
    ]


def torchrun(command):
    return ranks.torchrun_command(2, *command[1:])


def rehearse(processes, layer, options, command):
    """`ddp-patches rehearse OPTIONS -- COMMAND`, which must end well and leave nothing running."""
    line = [*OURS, "rehearse", *options, "--", *command]
    environ = layers.openmmlab_environment(processes.folder, layer)
    result = processes.run(line, environ, limit=LIMIT_SECONDS).check()
    assert not result.leftovers, str(result)
    assert (processes.folder / "runs" / "epoch_1.pth").is_file()
    return result.stdout + result.stderr


def start_line(layer):
    # How many ranks have told about themselves in time is another test's matter.
    version = "3.5.1" if layer == ONEDL else re.escape(layer.partition("/")[2])
    return r"REHEARSAL ddp_patches \S+ is on for \d of 2 ranks .* mmdet %s, " % version


def applied(processes, layer):
    """For both ranks of the run, the ids of which every target found was replaced."""
    command = [*OURS, "status", "--run", "newest", "--json"]
    environ = layers.openmmlab_environment(processes.folder, layer)
    status = json.loads(processes.run(command, environ).check().stdout)
    assert [rank["rank"] for rank in status["ranks"]] == [0, 1]
    for rank in status["ranks"]:
        assert not [row for row in rank["patches"] if row["state"] == "failed"]
    return [{row["id"] for row in rank["patches"] if row["state"] == "applied"} for rank in status["ranks"]]


@pytest.mark.parametrize("layer", ["mmdet/3.3.0", "mmdet/3.0.0", ONEDL])
def test_mmdet_3_through_the_launcher_that_its_option_asks_for(processes, layer):
    """The command is the user's, without torchrun."""
    shown = rehearse(processes, layer, ["-n", "2"], train(processes, layer))
    assert "torchrun starts 2 processes" in shown
    assert re.search(start_line(layer), shown), shown
    assert re.search(r"Epoch\(train\) +\[1\]\[6/6\] .* loss_centerness: ", shown), shown
    metric = "" if layer == ONEDL else "coco/bbox_mAP: "  # the fork's needs a package more
    assert re.search(r"Epoch\(val\) \[1\]\[4/4\] +" + metric, shown), shown
    for ids in applied(processes, layer):
        assert {"mmdet.reduce_mean", "torch.process_group_timeout", "rehearse.gloo"} <= ids


@pytest.mark.release(name="mmdet/2.28.2")
def test_mmdet_2_under_torchrun(processes):
    """mmcv 1.x unpacks a batch only on its way to a device, and mmdet 2.x wants one to build its model."""
    layer = "mmdet/2.28.2"
    shown = rehearse(processes, layer, [], torchrun(train(processes, layer)))
    assert re.search(start_line(layer), shown), shown
    assert re.search(r"Epoch \[1\]\[6/6\]\s.* loss_centerness: ", shown), shown
    assert re.search(r"Epoch\(val\) \[1\]\[4\]\s+bbox_mAP: ", shown), shown
    assert shown.count("this torch is too new for this mmcv") == 1
    for ids in applied(processes, layer):
        assert {"mmdet.reduce_mean", "rehearse.mmcv", "rehearse.mmdet"} <= ids


@pytest.mark.parametrize("layer", ["mmdet/2.28.2", pytest.param("mmdet/3.3.0", marks=pytest.mark.matrix)])
def test_the_same_training_fails_without_the_stand_ins(processes, layer):
    """One rank of it is enough to see, or the tests above would show nothing."""
    environ = layers.openmmlab_environment(processes.folder, layer)
    environ.update(ranks.variables(0, 1, ranks.free_port()))
    result = processes.run(train(processes, layer), environ, limit=LIMIT_SECONDS)
    assert result.returncode == 1
    assert "set_device" in result.stderr
