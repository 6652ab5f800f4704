"""``ultralytics.launch`` on real releases: a training script that changes its environment, and its workers.

The trainer is the user's own class, in a folder that only the script's PYTHONPATH names: the very reason
for which scripts set it. It pretends two GPUs, and a worker reports instead of training.
"""

from __future__ import annotations

import json
import os
import sys

import pytest

from ddp_patches.engine.versions import FITTING
from support import dataset, environment, layers, ranks

USER_TRAINER = """
    import json, os, sys
    import torch
    import ultralytics.engine.trainer as upstream
    from ultralytics.models.yolo.detect import DetectionTrainer

    def select_device(device="", *arguments, **keywords):
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
        return torch.device("cuda", 0)

    upstream.select_device = select_device

    class Trainer(DetectionTrainer):
        def _do_train(self, *arguments):
            report = {"armed": "ddp_patches" in sys.modules}
            if report["armed"]:
                import ddp_patches
                status = ddp_patches.status()
                report["patches"] = [(row.id, row.state) for row in status.patches]
                report["settings"] = status.settings
            with open(os.path.join(os.environ["REPORTS"], os.environ["RANK"]), "w") as file:
                json.dump(report, file)
"""

SCRIPT = """
    import ddp_patches.auto
    import ddp_patches
    ddp_patches.enable(timeout="3h")

    # Lines that stand in many scripts and notebooks.
    import os
    os.environ["PYTHONPATH"] = os.environ["USER_CODE"]
    for name in [name for name in os.environ if name.startswith("DDP_PATCHES_")]:
        if name != "DDP_PATCHES_SKIP":
            del os.environ[name]

    import sys
    sys.path.insert(0, os.environ["USER_CODE"].split(os.pathsep)[0])
    from user_trainer import Trainer
    from ultralytics import YOLO
    try:
        YOLO("yolov8n.yaml").train(trainer=Trainer, data=os.environ["DATA"], device="0,1", epochs=1, batch=4,
                                   imgsz=64, project=os.environ["RUNS"], plots=False, workers=0)
    except FileNotFoundError as error:
        print("no weights, nobody trained:", error)
    print(sorted(os.listdir(os.environ["RUNS"])))
"""


def train(processes, version, **variables):
    """Run the script; the launching process's result and the report of each worker."""
    folder = processes.folder
    for name in ("code", "reports", "runs"):
        (folder / name).mkdir()
    ranks.script(folder / "code", USER_TRAINER, "user_trainer.py")
    path = ranks.script(folder, SCRIPT)
    user_code = (folder / "code", environment.CPU_VISION, layers.ultralytics(version))
    known = layers.ultralytics_environment(
        folder,
        version,
        DATA=str(dataset.make(folder / "data")),
        REPORTS=str(folder / "reports"),
        RUNS=str(folder / "runs"),
        USER_CODE=os.pathsep.join(map(str, user_code)),
        DDP_PATCHES_ZERO_FIRST_TIMEOUT="48h",
        DDP_PATCHES_RUN_DIR="none",
        **variables,
    )
    result = processes.run([sys.executable, path], known, limit=270)
    reports = [json.loads(file.read_text()) for file in sorted((folder / "reports").iterdir())]
    assert len(reports) == 2, result
    return result, reports


@pytest.mark.parametrize("version", ["8.3.190", pytest.param("8.4.190", marks=pytest.mark.matrix)])
def test_workers_of_a_script_that_sets_pythonpath_are_armed(processes, version):
    """Both workers show every patch applied, with the settings of the parent."""
    result, reports = train(processes, version)
    for report in reports:
        assert report["armed"], result
        ours = [(name, state) for name, state in report["patches"] if name.startswith("ultralytics.")]
        assert {state for _, state in ours} == {"applied"}, ours
        settings = {name: (row["value"], row["source"]) for name, row in report["settings"].items()}
        assert settings["timeout"] == (10800.0, "keyword")
        assert settings["zero_first_timeout"] == (172800.0, "environment")
        assert settings["run_dir"] == ("none", "environment")


@pytest.mark.release(name="ultralytics/8.3.190")
def test_without_the_patch_they_are_not(processes):
    """Shows that the test above can fail."""
    result, reports = train(processes, "8.3.190", DDP_PATCHES_SKIP="ultralytics.launch")
    assert [report["armed"] for report in reports] == [False, False], result


COMMAND = """
    import inspect, json, os, types
    import ddp_patches.auto
    import torch
    try:
        import ultralytics.engine.trainer as trainer_module
        import ultralytics.utils.dist as dist_module
    except ImportError:
        import ultralytics.yolo.engine.trainer as trainer_module
        import ultralytics.yolo.utils.dist as dist_module
    import ddp_patches

    # resume: or upstream removes save_dir.
    trainer = types.SimpleNamespace(resume=True, world_size=2, model=None, callbacks={}, hub_session=None)
    trainer.args = types.SimpleNamespace(model="yolov8n.yaml", save_dir="x")
    wanted = inspect.signature(dist_module.generate_ddp_command).parameters
    arguments = [2, trainer] if "world_size" in wanted else [trainer]
    os.environ["PYTHONPATH"] = "/my/code"
    command, file = trainer_module.generate_ddp_command(*arguments)
    dist_module.ddp_cleanup(trainer, str(file))
    rows = [row for row in ddp_patches.status().patches if row.id == "ultralytics.launch"]
    print(json.dumps({
        "command": command, "file": str(file), "path": os.environ["PYTHONPATH"].split(os.pathsep),
        "state": rows[0].state, "verdict": rows[0].verdict, "reason": rows[0].reason,
    }))
"""


@pytest.mark.parametrize("version", ["8.0.40", "8.4.0"])
def test_command_is_upstreams_own(processes, version):
    """The launching call of each form of the function, through the name that the trainer imported."""
    known = layers.ultralytics_environment(processes.folder, version, DDP_PATCHES_RUN_DIR="none")
    path = ranks.script(processes.folder, COMMAND)
    answer = processes.run([sys.executable, path], known, limit=270).check().answer
    command = answer["command"]
    assert command[:5] == [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    assert command[5] == "--master_port"
    assert command[7] == answer["file"]
    assert answer["path"][0].endswith("bootstrap")
    assert answer["path"][1:] == ["/my/code"]
    assert answer["state"] == "applied" and answer["verdict"] in FITTING  # `tested` only once this has passed
    assert answer["reason"] == "set for the workers again: PYTHONPATH"
