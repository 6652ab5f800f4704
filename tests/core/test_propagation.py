"""The environment for child processes. Guards: arming is undone exactly, and keeps what the user has."""

from __future__ import annotations

import os

import pytest

from ddp_patches import propagation

OURS = propagation.bootstrap_directory()
SEP = os.pathsep

PYTHON_PATHS = [None, "", "/a", f"/a{SEP}/b", f"/a{SEP}", SEP, f"{SEP}/a", f"/a{SEP}{SEP}/b"]


def environment(python_path):
    return (
        {"HOME": "/home/user"} if python_path is None else {"HOME": "/home/user", "PYTHONPATH": python_path}
    )


@pytest.mark.parametrize("python_path", PYTHON_PATHS)
def test_arm_goes_first_and_adds_no_empty_entry(python_path):
    """An empty entry means the current folder, from which every child would then import."""
    environ = environment(python_path)
    propagation.arm(environ)
    entries = environ["PYTHONPATH"].split(SEP)
    assert entries[0] == OURS
    assert entries[1:] == (python_path.split(SEP) if python_path else [])


@pytest.mark.parametrize("python_path", PYTHON_PATHS)
@pytest.mark.parametrize("keywords", [None, {"timeout": "4h", "skip": "a,b"}])
def test_disarm_restores_exactly(python_path, keywords):
    environ = environment(python_path)
    environ["DDP_PATCHES_SKIP"] = "torch.teardown"
    before = dict(environ)
    previous = propagation.arm(environ, keywords)
    assert environ != before
    propagation.disarm(environ, previous)
    assert environ == before


def test_arming_twice_changes_nothing():
    environ = environment("/a")
    propagation.arm(environ)
    once = dict(environ)
    assert propagation.arm(environ) == {}
    assert environ == once


def test_disarm_after_a_second_arm_of_the_same_process_tree_keeps_the_parents():
    """A worker that enables and disables must not cut off its own children from what the launcher gave."""
    environ = environment("/a")
    propagation.arm(environ, {"timeout": "4h"})
    inherited = dict(environ)
    previous = propagation.arm(environ, {"skip": "torch.teardown"})
    assert environ["DDP_PATCHES_KEYWORDS"] == "timeout,skip"
    propagation.disarm(environ, previous)
    assert environ == inherited


def test_what_others_changed_in_between_is_kept():
    environ = environment("/a")
    previous = propagation.arm(environ, {"timeout": "4h", "skip": "x"})
    environ["PYTHONPATH"] = f"/repo{SEP}{environ['PYTHONPATH']}{SEP}/z"
    environ["DDP_PATCHES_TIMEOUT"] = "9h"
    propagation.disarm(environ, previous)
    assert environ == {
        "HOME": "/home/user",
        "PYTHONPATH": SEP.join(["/repo", "/a", "/z"]),
        "DDP_PATCHES_TIMEOUT": "9h",
    }


def test_disarm_when_others_removed_everything():
    environ = environment(None)
    previous = propagation.arm(environ, {"timeout": "4h"})
    environ.clear()
    propagation.disarm(environ, previous)
    assert environ == {}


def test_a_bootstrap_that_has_fallen_behind_moves_to_the_front_once():
    """`export PYTHONPATH=/repo:$PYTHONPATH` in a script: a sitecustomize in /repo would hide ours."""
    environ = environment(None)
    propagation.arm(environ)
    environ["PYTHONPATH"] = f"/repo{SEP}{environ['PYTHONPATH']}"
    propagation.arm(environ)
    assert environ["PYTHONPATH"] == f"{OURS}{SEP}/repo"


def test_disarm_without_previous_takes_out_what_a_parent_put_in():
    environ = environment("/a")
    environ["DDP_PATCHES_RUN_DIR"] = "none"  # the user's own
    before = dict(environ)
    propagation.arm(environ, {"timeout": "4h"})
    propagation.disarm(environ)
    assert environ == before


def test_contain_ends_the_way_and_keeps_the_settings():
    environ = environment("/a")
    propagation.arm(environ, {"timeout": "4h"})
    propagation.contain(environ)
    assert environ["PYTHONPATH"] == "/a"
    assert "DDP_PATCHES_ARMED" not in environ
    assert environ["DDP_PATCHES_TIMEOUT"] == "4h"


def test_a_folder_that_python_path_cannot_hold_is_an_obstacle(monkeypatch, tmp_path):
    monkeypatch.setattr(propagation, "PACKAGE_DIRECTORY", str(tmp_path / f"a{SEP}b"))
    environ = environment("/a")
    assert propagation.arm(environ) == {}
    assert environ == environment("/a")
    assert SEP in propagation.obstacle()


def test_a_package_without_its_bootstrap_is_an_obstacle(monkeypatch, tmp_path):
    monkeypatch.setattr(propagation, "PACKAGE_DIRECTORY", str(tmp_path))
    assert "sitecustomize" in propagation.obstacle()
