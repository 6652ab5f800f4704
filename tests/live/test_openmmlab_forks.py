"""Which OpenMMLab is it? Forks under other distribution names, and installations that are not whole."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from support import environment, layers

FORK = {"mmdet": "3.5.1", "mmengine": "0.10.12", "mmcv": "2.3.6"}
UPSTREAM = {"mmdet": "3.3.0", "mmengine": "0.10.7", "mmcv": "2.1.0"}
FORK_NAMES = {"mmdet": "onedl-mmdetection", "mmengine": "onedl-mmengine", "mmcv": "onedl-mmcv"}
UPSTREAM_NAMES = {"mmdet": "mmdet", "mmengine": "mmengine", "mmcv": "mmcv-lite"}

# What `status` says of the files, then an import, then what it says of the process.
LOOK = """
import importlib, json, os, sys
from ddp_patches import overview
before = overview.before_a_run(os.environ)
text = str(before)

import ddp_patches
ddp_patches.enable(propagate=False)
error = ""
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as caught:
        error = error or "%s: %s" % (type(caught).__name__, caught)
after = ddp_patches.status()
text += str(after)

def rows(status):
    return {row.id: [row.state, row.version, row.reason] for row in status.patches if row.package != "torch"}
print(json.dumps({
    "packages": {name: [p["version"], p["distributions"]] for name, p in before.packages.items()},
    "warnings": [warning["id"] for warning in before.warnings],
    "before": rows(before),
    "after": rows(after),
    "error": error,
}))
"""


def look(processes, *modules, path=(), **variables):
    environ = environment.clean(processes.folder, environment.CPU_VISION, *path, **variables)
    return processes.run([sys.executable, "-c", LOOK, *modules], environ, limit=240).check().answer


@pytest.mark.parametrize(
    ("order", "versions", "names"),
    [
        (["mmdet/onedl", "mmdet/3.3.0"], FORK, FORK_NAMES),
        (["mmdet/3.3.0", "mmdet/onedl"], UPSTREAM, UPSTREAM_NAMES),
    ],
)
@pytest.mark.release(name="mmdet/onedl")
def test_of_fork_and_upstream_the_one_that_is_imported_counts(processes, order, versions, names):
    """Both lie on the path: metadata of the other one must not decide. Each order is wrong for the other."""
    found = look(processes, "mmdet.utils", "mmengine.dist", path=map(layers.layer, order))
    assert found["error"] == ""
    for package, version in versions.items():
        assert found["packages"][package] == [version, ["%s %s" % (names[package], version)]]
    for moment, state in (("before", "waiting"), ("after", "applied")):
        assert found[moment]["mmdet.reduce_mean"][:2] == [state, versions["mmdet"]]
        assert found[moment]["mmengine.init_dist"][:2] == [state, versions["mmengine"]]


# --- installations that are not whole -----------------------------------------------------------------------


def only_some_files(site, layer):
    """As an interrupted installation leaves it."""
    whole = site / "mmdet"
    target = os.readlink(whole)
    whole.unlink()
    whole.mkdir()
    for name in ("__init__.py", "version.py"):
        shutil.copy(os.path.join(target, name), whole / name)


def left_over_folder(site, layer):
    """As uninstalling leaves it where something has written into it: a namespace package."""
    (site / "mmdet").unlink()
    (site / "mmdet" / "work_dirs").mkdir(parents=True)


def without_mmcv(site, layer):
    (site / "mmcv").unlink()


def older_mmcv(site, layer):
    (site / "mmcv").unlink()
    (site / "mmcv").symlink_to(layers.layer("mmdet/2.28.2") / "mmcv")


def without_a_version(site, layer):
    only_some_files(site, layer)
    (site / "mmdet" / "__init__.py").write_text("", encoding="utf-8")
    (site / "mmdet" / "version.py").unlink()


BROKEN = {
    only_some_files: ("ModuleNotFoundError: No module named 'mmdet.utils'", "there is no module mmdet.utils"),
    left_over_folder: (
        "ModuleNotFoundError: No module named 'mmdet.utils'",
        "there is no module mmdet.utils",
    ),
    without_a_version: (
        "ModuleNotFoundError: No module named 'mmdet.utils'",
        "there is no module mmdet.utils",
    ),
    without_mmcv: ("ModuleNotFoundError: No module named 'mmcv'", ""),
    older_mmcv: ("AssertionError: MMCV==1.7.2 is used but incompatible", ""),
}


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
@pytest.mark.release(name="mmdet/3.3.0")
def test_what_is_not_whole_is_a_row_and_the_users_error_is_upstreams(processes, damage):
    """Never a new crash: `status` reads what there is, and the import fails as it does without us."""
    layer = layers.layer("mmdet/3.3.0")
    site = processes.folder / "site"
    site.mkdir()
    for name in ("mmcv", "mmdet", "mmengine"):
        (site / name).symlink_to(layer / name)
    damage(site, layer)
    error, reason = BROKEN[damage]
    found = look(processes, "mmdet.utils", path=[site])
    assert found["error"].startswith(error)
    state, _, said = found["before"]["mmdet.reduce_mean"]
    assert state == ("skipped" if reason else "waiting")
    assert reason in said
    assert found["after"]["mmdet.reduce_mean"][0] in ("waiting", "skipped")
    assert all(row[0] != "failed" for row in found["after"].values())


@pytest.mark.release(name="mmdet/3.3.0")
def test_ops_that_are_not_compiled_are_a_warning(processes):
    """Without the stand-in: mmdet's models do not import, and what is patched by then stays patched."""
    layer = layers.layer("mmdet/3.3.0")
    site = processes.folder / "site"
    shutil.copytree(layer / "mmcv", site / "mmcv", ignore=shutil.ignore_patterns("_ext.*"))
    for name in ("mmdet", "mmengine"):
        (site / name).symlink_to(layer / name)
    environ = environment.clean(processes.folder, site)
    command = [sys.executable, "-c", LOOK, "mmdet.utils", "mmdet.models"]
    found = processes.run(command, environ, limit=240).check().answer
    assert found["error"] == "ModuleNotFoundError: No module named 'mmcv._ext'"
    assert "mmcv_ops" in found["warnings"]
    assert found["after"]["mmdet.reduce_mean"][0] == "applied"
    assert all(row[0] != "failed" for row in found["after"].values())
