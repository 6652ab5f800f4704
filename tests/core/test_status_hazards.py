"""What `status` warns of before a run: each decision over plain facts, at both sides of its limit."""

from __future__ import annotations

import os

import pytest

from ddp_patches import settings
from ddp_patches.inspection import hazards, surroundings
from ddp_patches.inspection.hazards import GIB, MIB, Folder
from ddp_patches.inspection.installed import Package


def test_a_containers_shared_memory_is_too_small():
    found = hazards.little_shared_memory(64 * MIB, 64 * MIB)
    assert "64 MiB" in found.message
    assert "--shm-size" in found.advice
    assert "--ipc=host" in found.advice


def test_shared_memory_that_others_have_filled():
    found = hazards.little_shared_memory(16 * GIB, 10 * MIB)
    assert "10 MiB free" in found.message
    assert "--shm-size" not in found.advice


@pytest.mark.parametrize("size, free", [(16 * GIB, 15 * GIB), (GIB, GIB), (None, None)])
def test_enough_or_no_shared_memory_is_no_hazard(size, free):
    assert hazards.little_shared_memory(size, free) is None


@pytest.mark.parametrize(
    "ultralytics, has_it, hazard",
    [
        ("8.4.140", False, True),
        ("8.4.190", False, True),
        ("8.4.190", True, False),
        ("8.4.139", False, False),
        ("8.4.140rc1", False, True),
        ("", False, False),
        ("a checkout", False, True),
    ],
)
def test_cloudpickle_is_missing_where_the_launch_needs_it(ultralytics, has_it, hazard):
    assert bool(hazards.missing_cloudpickle(ultralytics, has_it)) is hazard


@pytest.mark.parametrize(
    "version, file, frameworks, advice",
    [
        ("2.1.0", "__init__.py", ["mmdet"], "mim install mmcv"),
        ("1.7.2", "__init__.py", ["mmdet", "mmdet3d"], "mim install mmcv-full"),
        ("2.1.0", "_ext.cpython-311-x86_64-linux-gnu.so", ["mmdet"], None),
        ("2.1.0", "_ext.pyd", ["mmdet"], None),
        ("2.1.0", "__init__.py", [], None),
    ],
)
def test_mmcv_without_its_compiled_ops(tmp_path, version, file, frameworks, advice):
    (tmp_path / file).touch()
    packages = {name: Package(name, "3.3.0", (), "") for name in frameworks}
    packages["mmcv"] = Package("mmcv", version, (), str(tmp_path))
    found = hazards.missing_ops(packages)
    assert (found and found.advice.partition(": ")[2]) == advice
    assert hazards.missing_ops({"mmdet": Package("mmdet", "3.3.0", (), "")}) is None


def test_folders_that_cannot_be_written_or_are_full():
    read_only = hazards.bad_folder("home", "why", Folder("/x", False, GIB), "do")
    full = hazards.bad_folder("home", "why", Folder("/x", True, MIB), "do")
    assert "/x is not writable" in read_only.message
    assert "full" in full.message
    assert hazards.bad_folder("home", "why", Folder("/x", True, GIB), "do") is None
    assert hazards.bad_folder("home", "why", Folder("/x", True, None), "do") is None


def test_a_folder_that_is_still_to_be_made_is_judged_by_the_one_above_it(tmp_path):
    assert hazards.folder(str(tmp_path / "a" / "b")).path == str(tmp_path)
    assert hazards.folder(str(tmp_path)).writable


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_seen(tmp_path):
    tmp_path.chmod(0o500)
    assert not hazards.folder(str(tmp_path)).writable


def test_users_without_a_name():
    assert "1234" in hazards.no_user_entry(1234, False).message
    assert hazards.no_user_entry(1234, True) is None
    assert hazards.no_user_entry(None, False) is None


def test_a_python_that_ours_does_not_reach():
    assert "-I" in hazards.unreachable_python(1, 1, 0).message  # -I implies -E
    assert "-E" in hazards.unreachable_python(1, 0, 0).message
    assert "-S" in hazards.unreachable_python(0, 0, 1).message
    assert hazards.unreachable_python(0, 0, 0) is None


def test_platforms_where_less_works():
    assert hazards.limited_platform("linux") is None
    assert "Windows" in hazards.limited_platform("win32").message
    assert "macOS" in hazards.limited_platform("darwin").message


def test_all_of_this_machine_come_with_an_id_and_problems_of_settings_at_the_end(tmp_path):
    environ = {"DDP_PATCHES": "0", "DDP_PATCHES_TIMEOUT": "soon", "XDG_STATE_HOME": str(tmp_path)}
    package = Package("ultralytics", "8.4.190", (), "/x")
    found = hazards.collect(environ, {"ultralytics": package}, settings.load(environ))
    assert found[0].id == "off"
    assert found[-1].id == "setting"
    assert "'soon'" in found[-1].message
    assert all(hazard.id and hazard.message for hazard in found)


def test_limits_name_the_variables_and_no_others():
    """An environment also holds passwords and tokens: only what is asked for by name is shown."""
    environ = {
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "MASTER_ADDR": "node1",
        "NCCL_SECRET_TOKEN": "x",
        "DDP_PATCHES_TIMEOUT": "4h",
    }
    found = surroundings.limits(environ, settings.load(environ))
    assert found["group_timeout"] == {"floor": 14400.0, "source": "environment"}
    assert found["blocking_wait"] == {
        "value": "auto",
        "source": "default",
        "variables": {"TORCH_NCCL_BLOCKING_WAIT": "1"},
    }
    assert found["heartbeat"]["variables"] == {"TORCH_NCCL_ENABLE_MONITORING": "0"}
    assert found["async_error_handling"]["variables"] == {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    assert found["store"]["variables"] == {"MASTER_ADDR": "node1"}
    assert "x" not in str(found).split("'")


@pytest.mark.parametrize(
    "environ, name",
    [
        ({"TORCHELASTIC_RUN_ID": "a", "RANK": "0", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}, "torchrun"),
        ({"SLURM_PROCID": "3", "SLURM_JOB_ID": "1"}, "slurm"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "mpi"),
        ({"RANK": "1"}, "environment"),
        ({}, ""),
    ],
)
def test_launchers(environ, name):
    found = surroundings.launcher(environ)
    assert found["name"] == name
    if "RANK" in environ:
        assert found["variables"]["RANK"] == environ["RANK"]
