"""How an Ultralytics launch ends on real releases: interrupted, orphaned, failed, or well.

The trainer is the user's own; it pretends two GPUs, and what a rank does in place of training is the test's
affair. More cases, with stand-ins for Ultralytics and torch, are in ``tests/core/test_launch_end.py``.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys

import pytest

from support import dataset, launching, layers, ranks
from support.releases import NEWEST_ULTRALYTICS

LIMIT_SECONDS = 400  # some 20 s on two free cores, many times that on busy ones

USER_TRAINER = """
    import os, sys, time
    import torch
    try:
        import ultralytics.engine.trainer as upstream
        from ultralytics.models.yolo.detect import DetectionTrainer
    except ImportError:
        import ultralytics.yolo.engine.trainer as upstream
        from ultralytics.yolo.v8.detect import DetectionTrainer

    def select_device(device="", *arguments, **keywords):
        return torch.device("cuda", 0)

    upstream.select_device = select_device
    torch.cuda.device_count = lambda: 2

    class Trainer(DetectionTrainer):
        def _do_train(self, *arguments):
            rank = int(os.environ["RANK"])
            os.write(1, b"RANK %d begins, pid %d\\n" % (rank, os.getpid()))  # in one piece
            exec(os.environ["RANK_DOES"], {"rank": rank, "os": os, "sys": sys, "time": time})
            print("RANK %d is done" % rank, flush=True)
"""

SCRIPT = """
    import ddp_patches.auto
    import os, subprocess, sys
    from user_trainer import Trainer

    if __name__ == "__main__":
        known = dict(model="yolov8n.yaml", data=os.environ["DATA"], device="0,1", epochs=1, batch=4, imgsz=64)
        try:
            Trainer(overrides=dict(known, project=os.environ["RUNS"], plots=False, workers=0)).train()
        except subprocess.CalledProcessError as error:
            print("%s: %s" % (type(error).__name__, error), flush=True)
            raise
        print("train() returned", flush=True)
"""


def launch(processes, version, rank_does, name="parent", prefix=(), **variables):
    """Start the user's script; `rank_does` is what a rank runs in place of training."""
    folder = processes.folder / name
    for part in ("code", "script"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    ranks.script(folder / "code", USER_TRAINER, "user_trainer.py")
    path = ranks.script(folder / "script", SCRIPT, "train.py")
    known = layers.ultralytics_environment(
        folder,
        version,
        DATA=str(dataset.make(folder / "data", train=4, val=4)),
        RUNS=str(folder / "runs"),
        RANK_DOES=rank_does,
        HOME=str(folder),
        TMPDIR=str(folder),
        MPLBACKEND="Agg",
        DDP_PATCHES_RUN_DIR="none",
        **variables,
    )
    known["PYTHONPATH"] = os.pathsep.join([str(folder / "code"), known["PYTHONPATH"]])
    return processes.start([*prefix, sys.executable, path], known, name)


# A release for each form of the relaunch: the user's script again; a generated file; that and a pickle.
@pytest.mark.parametrize(
    ("version", "number"),
    [
        pytest.param("8.0.100", signal.SIGINT, marks=pytest.mark.matrix),
        pytest.param("8.0.100", signal.SIGKILL, marks=pytest.mark.matrix),
        ("8.2.103", signal.SIGTERM),
        pytest.param(NEWEST_ULTRALYTICS, signal.SIGINT, marks=pytest.mark.matrix),
        (NEWEST_ULTRALYTICS, signal.SIGTERM),
        (NEWEST_ULTRALYTICS, signal.SIGKILL),
    ],
)
def test_a_signal_to_the_parent_alone_ends_launcher_and_workers(processes, version, number):
    running = launch(processes, version, launching.SLEEP)
    launching.both_ranks_begin(running, LIMIT_SECONDS)
    started = running.descendants()
    assert len(started) >= 3
    running.send(number)
    running.popen.wait(120)
    assert launching.gone(started), running.wait(0)
    running.wait(0).check(-number)
    assert launching.files_left(processes.folder) == []


@pytest.mark.release(name="ultralytics/" + NEWEST_ULTRALYTICS)
@pytest.mark.matrix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_without_the_patch_they_live_on(processes, number):
    """Shows that the test above can fail."""
    running = launch(processes, NEWEST_ULTRALYTICS, launching.SLEEP, **launching.OFF)
    launching.both_ranks_begin(running, LIMIT_SECONDS)
    running.send(number)
    assert len(running.wait(120).leftovers) >= 2


@pytest.mark.parametrize("version", [pytest.param("8.0.100", marks=pytest.mark.matrix), NEWEST_ULTRALYTICS])
def test_a_failing_ranks_own_traceback(processes, version):
    result = launch(processes, version, launching.FAILS).wait(LIMIT_SECONDS).check(1)
    assert "WorkersFailed: Command '['" in result.stdout
    _, _, told = result.stdout.partition("Rank 1 (")
    assert "failed first, with exit code 1." in told
    assert "in augment" in told
    assert "KeyError: 'mosaic'" in told
    assert launching.files_left(processes.folder) == []


@pytest.mark.matrix
@pytest.mark.release(name="ultralytics/8.2.103")
def test_a_killed_rank_is_explained(processes):
    result = launch(processes, "8.2.103", launching.KILLED).wait(LIMIT_SECONDS).check(1)
    _, _, told = result.stdout.partition("Rank 1 (")
    assert "failed first, ended by signal 9 (SIGKILL)." in told
    assert "host memory" in told


@pytest.mark.matrix
@pytest.mark.release(name="ultralytics/" + NEWEST_ULTRALYTICS)
def test_without_the_patch_the_exception_knows_nothing(processes):
    result = (
        launch(processes, NEWEST_ULTRALYTICS, launching.FAILS, **launching.OFF).wait(LIMIT_SECONDS).check(1)
    )
    assert "CalledProcessError: Command '['" in result.stdout
    assert "KeyError" not in result.stdout  # an argument of upstream's is called mosaic


@pytest.mark.release(name="ultralytics/" + NEWEST_ULTRALYTICS)
@pytest.mark.matrix
@pytest.mark.parametrize("off", [False, True])
def test_a_closed_terminal_under_nohup(processes, off):
    """SIGHUP goes to parent and launcher; the parent ignores it, the launcher sets a handler of its own."""
    rank_does = "time.sleep(5)"
    variables = launching.OFF if off else {}
    running = launch(processes, NEWEST_ULTRALYTICS, rank_does, prefix=["nohup"], **variables)
    launching.both_ranks_begin(running, LIMIT_SECONDS)
    os.killpg(running.pid, signal.SIGHUP)
    result = running.wait(LIMIT_SECONDS)
    assert ("train() returned" in result.stdout) is not off, result


@pytest.mark.matrix
@pytest.mark.release(name="ultralytics/8.2.103")
def test_another_copy_of_ultralytics_is_named(processes):
    """Report 46: the user's folder has a copy of its own, which the workers' file of another folder lacks."""
    version = "8.2.103"
    copy = processes.folder / "parent" / "script" / "ultralytics"
    shutil.copytree(str(layers.ultralytics(version) / "ultralytics"), str(copy))
    result = launch(processes, version, "pass").wait(LIMIT_SECONDS).check()
    (line,) = (line for line in result.stderr.splitlines() if "another copy of Ultralytics" in line)
    assert str((layers.ultralytics(version) / "ultralytics").resolve()) in line
    assert str(copy.resolve()) in line
