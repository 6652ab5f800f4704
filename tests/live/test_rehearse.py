"""A multi-GPU training of Ultralytics as CPU processes, through its own relaunch: a real, whole epoch.

Guards "a multi-GPU command runs as CPU processes over gloo": the parent starts `torch.distributed.run`, and
the workers make the process group themselves. mAP is 0 after one epoch: the flow is asserted, not the metric.
"""

from __future__ import annotations

import json
import re
import sys

import pytest

from support import dataset, layers, ranks
from support.releases import NEWEST_ULTRALYTICS, ULTRALYTICS

LIMIT_SECONDS = 280  # some 40 s on two free cores, several times that on busy ones

# How many ranks have told about themselves in time is another test's matter; how many there are is not.
START_LINE = r"REHEARSAL ddp_patches \S+ is on for \d of 2 ranks"

# By the script, which this release starts again on each rank: the other door, and the other layout of the
# modules, than the newest release has.
EVERYDAY = "8.0.132"
OLDER = [
    pytest.param(version, marks=[] if version == EVERYDAY else [pytest.mark.matrix])
    for version in ULTRALYTICS
    if version != NEWEST_ULTRALYTICS
]

SCRIPT = """
    import sys
    from ultralytics import YOLO

    def on_train_epoch_end(trainer):
        import torch.distributed as dist
        device = next(trainer.model.parameters()).device
        group = dist.get_rank(), dist.get_world_size(), dist.get_backend()
        print("RANK %d of %d, %s, on %s" % (*group, device), flush=True)

    if __name__ == "__main__":
        model = YOLO("yolov8n.yaml")
        model.add_callback("on_train_epoch_end", on_train_epoch_end)
        model.train(
            data=DATA, project=RUNS, epochs=1, imgsz=64, batch=4, workers=0, device=[0, 1], plots=False
        )
        print("train() returned", flush=True)
    """


def yolo(version, tmp_path, *more):
    """`yolo detect train …` as the user types it, with the program that this release installs."""
    data = dataset.make(tmp_path / "data")
    settings = ["model=yolov8n.yaml", f"data={data}", f"project={tmp_path / 'runs'}", "epochs=1", "imgsz=64"]
    program = layers.ultralytics(version) / "bin" / "yolo"
    return [
        sys.executable,
        program,
        "detect",
        "train",
        *settings,
        "batch=4",
        "workers=0",
        "plots=False",
        *more,
    ]


def script(tmp_path):
    """A script that calls `YOLO(...).train(...)`."""
    data = dataset.make(tmp_path / "data")
    text = SCRIPT.replace("DATA", repr(str(data))).replace("RUNS", repr(str(tmp_path / "runs")))
    return [sys.executable, ranks.script(tmp_path, text, "train.py")]


def ddp_patches(*arguments):
    return [sys.executable, "-m", "ddp_patches", *arguments]


def variables(tmp_path, version):
    # HOME, because early releases keep their settings and the generated file there.
    return layers.ultralytics_environment(tmp_path, version, HOME=str(tmp_path), MPLBACKEND="Agg")


def rehearse(processes, tmp_path, version, command, *options):
    """`ddp-patches rehearse -n 2 OPTIONS -- COMMAND`, which must end well and leave nothing running."""
    line = [*ddp_patches("rehearse", "-n", "2", *options, "--"), *command]
    result = processes.run(line, variables(tmp_path, version), limit=LIMIT_SECONDS).check()
    assert not result.leftovers, str(result)
    return result


def output(result):
    """Both streams without the terminal's colours."""
    return re.sub(r"\x1b\[[0-9;]*[mK]", "", result.stdout + result.stderr)


def assert_trained(result, tmp_path):
    """Weights of one epoch, and a final evaluation of them."""
    (folder,) = (tmp_path / "runs").iterdir()
    assert {path.name for path in (folder / "weights").iterdir()} == {"best.pt", "last.pt"}
    assert len((folder / "results.csv").read_text(encoding="utf-8").split("\n")[1:-1]) == 1
    shown = output(result)
    # Twice: after the epoch, and of best.pt at the end. Each ends with a line for all classes.
    _, found, final = shown.partition("Validating ")
    assert found and "best.pt" in final, shown
    assert re.search(r"^ +all +8 ", final, re.MULTILINE), shown


@pytest.mark.release(name="ultralytics/" + NEWEST_ULTRALYTICS)
def test_yolo_command(processes, tmp_path):
    """No device is named, for which Ultralytics alone starts one process. Our patches are on."""
    result = rehearse(processes, tmp_path, NEWEST_ULTRALYTICS, yolo(NEWEST_ULTRALYTICS, tmp_path))
    assert_trained(result, tmp_path)
    shown = output(result)
    assert re.search(r"debug command .*torch\.distributed\.run --nproc_per_node 2 ", shown)
    assert re.search(START_LINE, shown), shown
    command = ddp_patches("status", "--run", "newest", "--json")
    status = json.loads(processes.run(command, variables(tmp_path, NEWEST_ULTRALYTICS)).check().stdout)
    assert [rank["rank"] for rank in status["ranks"]] == [0, 1]
    for rank in status["ranks"]:
        rows = [row for row in rank["patches"] if row["id"].startswith("rehearse.")]
        states = {row["target"]: row["state"] for row in rows if row["package"] in ("torch", "ultralytics")}
        assert set(states.values()) == {"applied"}, states
        assert "ultralytics.engine.trainer:BaseTrainer._setup_ddp" in states


@pytest.mark.release(name="ultralytics/" + NEWEST_ULTRALYTICS)
@pytest.mark.matrix
def test_script_without_our_patches(processes, tmp_path):
    """The stand-ins alone are enough, or nothing could be compared with upstream."""
    result = rehearse(processes, tmp_path, NEWEST_ULTRALYTICS, script(tmp_path), "--without-patches")
    assert_trained(result, tmp_path)
    said = re.findall(r"RANK \d of \d, \w+, on \w+", result.stdout)  # anywhere: among a progress bar
    assert sorted(said) == ["RANK 0 of 2, gloo, on cpu", "RANK 1 of 2, gloo, on cpu"], str(result)
    assert result.stdout.count("train() returned") == 1
    assert not re.search(START_LINE, result.stderr)


@pytest.mark.parametrize("version", OLDER)
def test_older_releases(processes, tmp_path, version):
    """Each asks for CUDA in places of its own: 8.0.40 counts devices whatever device= says, 8.4.0 reads
    CUDA_VISIBLE_DEVICES back and evaluates on cuda:RANK in the end."""
    command = script(tmp_path) if version == EVERYDAY else yolo(version, tmp_path, "device=0,1")
    result = rehearse(processes, tmp_path, version, command)
    assert_trained(result, tmp_path)
    assert re.search(START_LINE, output(result)), str(result)


@pytest.mark.release(name="ultralytics/" + NEWEST_ULTRALYTICS)
def test_left_over_variable_changes_nothing(processes, tmp_path):
    """The same command without a rehearsal, in a shell where one has been: upstream looks for its GPUs."""
    seen = "import json, os; print(json.dumps(dict(os.environ)))"
    known = variables(tmp_path, NEWEST_ULTRALYTICS)
    rehearsal = [*ddp_patches("rehearse", "--"), sys.executable, "-c", seen]
    inside = processes.run(rehearsal, known).check().answer
    left_over = {**known, "DDP_PATCHES_REHEARSAL": inside["DDP_PATCHES_REHEARSAL"]}
    command = yolo(NEWEST_ULTRALYTICS, tmp_path, "device=0,1")
    result = processes.run([*ddp_patches("run", "--"), *command], left_over, limit=LIMIT_SECONDS)
    assert result.returncode == 1
    assert "Invalid CUDA 'device=0,1' requested" in result.stderr
    assert "nothing is rehearsed here" in result.stderr
    assert not (tmp_path / "runs").exists()
