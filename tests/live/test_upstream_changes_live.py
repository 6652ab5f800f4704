"""Real frameworks as they may look one day: the verdicts on a changed copy, and upstream's code left alone.

The same verdict before the import and after it, and nothing of ours where it does not fit.
"""

from __future__ import annotations

import ast
import shutil
import sys

import pytest

from support import environment, layers, made_up
from support.releases import NEWEST_ULTRALYTICS

ULTRALYTICS, MMDET = "ultralytics/" + NEWEST_ULTRALYTICS, "mmdet/2.28.2"
DECORATORS = """
    import wrapt
    from functools import lru_cache

    class Retried:
        def __init__(self, function):
            self.function = function

        def __call__(self, *arguments):
            return self.function(*arguments)

    @wrapt.decorator
    def retried(wrapped, instance, arguments, keywords):
        return wrapped(*arguments, **keywords)
"""
NO_FUNCTION = "it is no plain function but of type "


def put(old, new):
    """What writes `new` for `old` in a module's text."""

    def change(text):
        assert old in text, "no %r" % old
        return text.replace(old, new)

    return change


def decorated(definition, decorator):
    """What puts one of `DECORATORS` before a definition, which is given with its indentation."""

    def change(text):
        before, _, after = text.partition("\nimport ")  # what comes from the future is before the first
        text = before + "\nfrom framework import tomorrow\nimport " + after
        indentation = definition[: len(definition) - len(definition.lstrip())]
        return put("\n" + definition, "\n%s@tomorrow.%s\n%s" % (indentation, decorator, definition))(text)

    return change


def without(name):
    """What deletes a method."""

    def change(text):
        (node,) = [n for n in ast.walk(ast.parse(text)) if getattr(n, "name", "") == name]
        lines = text.splitlines(keepends=True)
        return "".join(lines[: node.lineno - 1] + lines[node.end_lineno :])

    return change


# What is changed in which file, and which verdict and reason that must give, by target. In place of a change:
# where the module is then.
ULTRALYTICS_CHANGES = {
    "signatures": {
        "BaseTrainer._setup_ddp": (
            "engine/trainer.py",
            put("def _setup_ddp(self):", "def _setup_ddp(self, mesh):"),
            "changed",
            "its signature (self, mesh) requires mesh",
        ),
        "BaseTrainer._do_train": (
            "engine/trainer.py",
            put("def _do_train(self):", "async def _do_train(self):"),
            "changed",
            "it is a coroutine by now",
        ),
        "generate_ddp_command": (
            "utils/dist.py",
            put("def generate_ddp_command(trainer:", "def command_of(trainer:"),
            "absent",
            "ultralytics.utils.dist has no generate_ddp_command",
        ),
        "torch_distributed_zero_first": (
            "utils/torch_utils.py",
            put("zero_first(local_rank: int)", "zero_first(local_rank: int, group=None)"),
            "compatible",
            "not run by our tests on ultralytics 8.5.0.dev1; the signature fits; since %s: was (local_rank)"
            % NEWEST_ULTRALYTICS,
        ),
    },
    "decorated": {
        "BaseTrainer._setup_ddp": (
            "engine/trainer.py",
            decorated("    def _setup_ddp(self):", "lru_cache(maxsize=None)"),
            "changed",
            NO_FUNCTION + "_lru_cache_wrapper",
        ),
        "BaseTrainer._do_train": (
            "engine/trainer.py",
            decorated("    def _do_train(self):", "Retried"),
            "changed",
            NO_FUNCTION + "Retried",
        ),
        "generate_ddp_command": (
            "utils/dist.py",
            put(
                "def generate_ddp_command(trainer:",
                "class generate_ddp_command:\n    def __new__(cls, trainer):\n"
                "        return command_of(trainer)\n\n\ndef command_of(trainer:",
            ),
            "changed",
            "it is no function but a class",
        ),
        "torch_distributed_zero_first": (
            "utils/torch_utils.py",
            decorated("@contextmanager\ndef torch_distributed_zero_first(", "retried"),
            "changed",
            NO_FUNCTION + "FunctionWrapper",
        ),
    },
    "gone": {
        "BaseTrainer._setup_ddp": (
            "engine/trainer.py",
            without("_setup_ddp"),
            "absent",
            "ultralytics.engine.trainer has no BaseTrainer._setup_ddp",
        ),
        "generate_ddp_command": (
            "utils/dist.py",
            "utils/launching.py",
            "absent",
            "there is no module ultralytics.utils.dist",
        ),
    },
}
# The files that import what has another name or place by then.
ULTRALYTICS_IMPORTS = {
    "signatures": [("engine/trainer.py", put("generate_ddp_command", "command_of"))],
    "gone": [
        ("engine/trainer.py", put("ultralytics.utils.dist import", "ultralytics.utils.launching import"))
    ],
}

MMDET_CHANGES = {
    "decorated": {
        "reduce_mean": (
            "core/utils/dist_utils.py",
            decorated("def reduce_mean(tensor):", "lru_cache(maxsize=None)"),
            "changed",
            NO_FUNCTION + "_lru_cache_wrapper",
        ),
        "CustomDataset._rand_another": (
            "datasets/custom.py",
            decorated("    def _rand_another(self, idx):", "Retried"),
            "changed",
            NO_FUNCTION + "Retried",
        ),
        "Compose.__call__": (
            "datasets/pipelines/compose.py",
            decorated("    def __call__(self, data):", "retried"),
            "changed",
            NO_FUNCTION + "FunctionWrapper",
        ),
    },
    "gone": {
        "reduce_mean": (
            "core/utils/dist_utils.py",
            "core/utils/reducing.py",
            "absent",
            "there is no module mmdet.utils.dist_utils; there is no module mmdet.core.utils.dist_utils",
        ),
        "CustomDataset._rand_another": (
            "datasets/custom.py",
            without("_rand_another"),
            "absent",
            "mmdet.datasets.custom has no CustomDataset._rand_another",
        ),
        "Compose.__call__": (
            "datasets/pipelines/compose.py",
            put("def __call__(self, data):", "def __call__(self, data, epoch):"),
            "changed",
            "its signature (self, data, epoch) requires epoch",
        ),
    },
}
MMDET_IMPORTS = {
    "gone": [
        ("core/utils/__init__.py", put("from .dist_utils", "from .reducing")),
        ("core/hook/sync_norm_hook.py", put("utils.dist_utils import", "utils.reducing import")),
    ],
}

PROGRAM = """if True:
    import importlib, json, os, sys
    from ddp_patches import overview
    package, *modules = sys.argv[1:]
    before = [row for row in overview.before_a_run(os.environ).patches if row.package == package]
    assert package not in sys.modules and "torch" not in sys.modules

    import ddp_patches
    ddp_patches.enable(propagate=False)
    import torch, torch.distributed
    for module in modules:
        importlib.import_module(module)
    after = [row for row in ddp_patches.status().patches if row.package == package]
    owners = [module for name, module in sys.modules.items() if name.partition(".")[0] == package]
    owners += [each for owner in owners for each in list(vars(owner).values()) if isinstance(each, type)]
    held = {id(value): value for owner in owners for value in list(vars(owner).values())}.values()
    ours = [function for function in held if "__ddp_patches__" in getattr(function, "__dict__", {})]
    print(json.dumps({
        "before": {row.target.partition(":")[2]: [row.state, row.verdict, row.reason] for row in before},
        "after": {row.target.partition(":")[2]: [row.state, row.verdict, row.reason] for row in after},
        "ours": sorted(function.__qualname__ for function in ours),
    }))
"""


def change_copy(package, changes, others):
    """Change a copy of a package, whose files may be hard links into somebody's cache."""
    made_up.write_files(package, {"tomorrow.py": DECORATORS})
    for name, change in [(name, change) for name, change, _, _ in changes.values()] + others:
        path = package / name
        text = path.read_text(encoding="utf-8")
        path.unlink()
        if isinstance(change, str):
            path = package / change
        else:
            text = change(text).replace("from framework import", "from %s import" % package.name)
        path.write_text(text, encoding="utf-8")


def judged(processes, package, modules, environ):
    command = [sys.executable, "-c", PROGRAM, package, *modules]
    return processes.run(command, environ, limit=240).check().answer


def compare(found, changes):
    for target, (_, change, verdict, reason) in changes.items():
        for when, states in (("before", ("waiting", "skipped")), ("after", ("applied", "skipped"))):
            state = states[0] if verdict == "compatible" else states[1]
            if when == "after" and isinstance(change, str):
                state = "waiting"  # somebody may yet import a module of the old name
            assert found[when][target][:2] == [state, verdict], (when, target, found[when][target])
            assert found[when][target][2].startswith(reason), (when, target)
    applied = [target for target, (state, _, _) in found["after"].items() if state == "applied"]
    assert found["ours"] == sorted(applied)


@pytest.mark.release(name=ULTRALYTICS)
@pytest.mark.parametrize("kind", ULTRALYTICS_CHANGES)
def test_what_does_not_fit_is_left_as_upstream_wrote_it(processes, tmp_path, kind):
    folder = tmp_path / "layer"
    shutil.copytree(layers.ultralytics(NEWEST_ULTRALYTICS), folder)
    changes = ULTRALYTICS_CHANGES[kind]
    version = ("__init__.py", put('"%s"' % NEWEST_ULTRALYTICS, '"8.5.0.dev1"'))
    change_copy(folder / "ultralytics", changes, [version, *ULTRALYTICS_IMPORTS.get(kind, [])])
    environ = layers.ultralytics_environment(tmp_path, NEWEST_ULTRALYTICS)
    environ["PYTHONPATH"] = environment.clean(tmp_path, environment.CPU_VISION, folder)["PYTHONPATH"]
    found = judged(processes, "ultralytics", ["ultralytics.engine.trainer"], environ)
    compare(found, changes)


@pytest.mark.release(name=MMDET)
@pytest.mark.parametrize("kind", MMDET_CHANGES)
def test_what_does_not_fit_in_mmdet_is_left_as_upstream_wrote_it(processes, tmp_path, kind):
    layer, folder = layers.layer(MMDET), tmp_path / "layer"
    shutil.copytree(layer / "mmdet", folder / "mmdet")
    changes = MMDET_CHANGES[kind]
    version = ("version.py", put("'2.28.2'", "'2.28.2-our-fork'"))
    change_copy(folder / "mmdet", changes, [version, *MMDET_IMPORTS.get(kind, [])])
    environ = environment.clean(tmp_path, environment.CPU_VISION, folder, layer)
    compare(judged(processes, "mmdet", ["mmdet.core", "mmdet.datasets"], environ), changes)
