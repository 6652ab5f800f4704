"""Real Ultralytics as it may look one day: the verdicts on a changed copy, and upstream's code left alone."""

from __future__ import annotations

import shutil
import sys

import pytest

from support import environment, layers
from support.releases import NEWEST_ULTRALYTICS

# What is written for what, and which verdict and reason that must give, by target.
CHANGES = {
    "BaseTrainer._setup_ddp": (
        "engine/trainer.py",
        "def _setup_ddp(self):",
        "def _setup_ddp(self, mesh):",
        "changed",
        "its signature (self, mesh) requires mesh",
    ),
    "BaseTrainer._do_train": (
        "engine/trainer.py",
        "def _do_train(self):",
        "async def _do_train(self):",
        "changed",
        "it is a coroutine by now",
    ),
    "generate_ddp_command": (
        "utils/dist.py",
        "def generate_ddp_command(trainer:",
        "def command_of(trainer:",
        "absent",
        "ultralytics.utils.dist has no generate_ddp_command",
    ),
    "torch_distributed_zero_first": (
        "utils/torch_utils.py",
        "def torch_distributed_zero_first(local_rank: int)",
        "def torch_distributed_zero_first(local_rank: int, group=None)",
        "compatible",
        "not run by our tests on ultralytics 8.5.0.dev1; the signature fits; since %s: was (local_rank)"
        % NEWEST_ULTRALYTICS,
    ),
}

PROGRAM = """if True:
    import json, os, sys
    import ddp_patches
    ddp_patches.enable(propagate=False)
    import torch, torch.distributed, ultralytics
    from ultralytics.engine import trainer
    from ultralytics.utils import dist, torch_utils
    rows = [row for row in ddp_patches.status().patches if row.package == "ultralytics"]
    held = [torch_utils.torch_distributed_zero_first, dist.command_of]
    held += [trainer.BaseTrainer._setup_ddp, trainer.BaseTrainer._do_train]
    print(json.dumps({
        "rows": {row.target.partition(":")[2]: [row.state, row.verdict, row.reason] for row in rows},
        "ours": [function.__name__ for function in held if hasattr(function, "__ddp_patches__")],
    }))
"""


@pytest.fixture
def changed(tmp_path):
    """The environment of a process that imports a changed copy of the newest release."""
    folder = tmp_path / "layer"
    shutil.copytree(layers.ultralytics(NEWEST_ULTRALYTICS), folder)
    package = folder / "ultralytics"
    for name, old, new, _, _ in CHANGES.values():
        rewrite(package / name, old, new)
    rewrite(package / "engine/trainer.py", "generate_ddp_command", "command_of")
    rewrite(package / "__init__.py", '"%s"' % NEWEST_ULTRALYTICS, '"8.5.0.dev1"')
    variables = layers.ultralytics_environment(tmp_path, NEWEST_ULTRALYTICS)
    return {
        **variables,
        "PYTHONPATH": environment.clean(tmp_path, environment.CPU_VISION, folder)["PYTHONPATH"],
    }


def rewrite(path, old, new):
    """Replace text in a file that may be a hard link into somebody's cache."""
    text = path.read_text(encoding="utf-8")
    assert old in text, "%s is not in %s" % (old, path)
    path.unlink()
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.release(name="ultralytics/" + NEWEST_ULTRALYTICS)
def test_what_does_not_fit_is_left_as_upstream_wrote_it(processes, changed):
    found = processes.run([sys.executable, "-c", PROGRAM], changed, limit=240).check().answer
    for target, (_, _, _, verdict, reason) in CHANGES.items():
        state = "applied" if verdict == "compatible" else "skipped"
        assert found["rows"][target][:2] == [state, verdict], target
        assert found["rows"][target][2].startswith(reason), target
    assert found["ours"] == ["torch_distributed_zero_first"]
