"""The folder of a run: where it lies, what is kept, and what happens where none can be made."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from ddp_patches import settings
from ddp_patches.runtime import run_folder

NAME = "20260101-0000%02d-abcdef"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith("DDP_PATCHES"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(settings, "_active", None)
    return tmp_path / "ddp_patches"


def test_the_newest_ten_are_kept_and_nothing_else_is_touched(folder):
    folder.mkdir()
    (folder / "mine").mkdir()
    for number in range(14):
        path = run_folder.make(NAME % number)
        run_folder.write(path, {"run": NAME % number})
    assert run_folder.runs() == [NAME % number for number in range(13, 3, -1)]
    assert sorted(os.listdir(folder)) == sorted([*run_folder.runs(), "mine"])
    assert run_folder.read(NAME % 13) == {"run": NAME % 13}


def test_it_is_readable_for_this_user_only(folder):
    path = run_folder.make(NAME % 0)
    run_folder.write(path, {})
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(os.path.join(path, "ledger.json")).st_mode) == 0o600


def test_a_full_disk_leaves_no_half_written_file(folder, monkeypatch):
    path = run_folder.make(NAME % 0)
    run_folder.write(path, {"written": "before"})

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_folder.json, "dump", full)
    with pytest.raises(OSError, match="No space left"):
        run_folder.write(path, {"written": "after"})
    assert os.listdir(path) == ["ledger.json"]
    assert run_folder.read(NAME % 0) == {"written": "before"}


@pytest.mark.parametrize("name", ["../secret", "", NAME % 0 + "/x", "20260101"])
def test_a_name_that_is_no_run_is_not_looked_up(folder, name):
    with pytest.raises(FileNotFoundError):
        run_folder.read(name)


def test_run_dir_none_makes_no_folder(folder, monkeypatch):
    monkeypatch.setenv("DDP_PATCHES_RUN_DIR", "none")
    with pytest.raises(OSError, match="run_dir is none"):
        run_folder.make(NAME % 0)
    assert run_folder.runs() == []
    assert not folder.exists()


def test_without_a_home_the_temporary_folder_is_taken(folder, monkeypatch):
    """A uid without a passwd entry: ``~`` stays ``~``."""
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setattr(run_folder.tempfile, "gettempdir", lambda: "/scratch")
    assert run_folder.base(os.environ) == "/scratch/ddp_patches-%d" % os.getuid()


def test_somebody_elses_folder_is_refused(folder, monkeypatch):
    """In a shared temporary folder anybody can make one with our name first."""
    folder.mkdir()
    monkeypatch.setattr(run_folder.os, "getuid", lambda: 54321)
    if os.stat(folder).st_uid == 0:
        os.chown(folder, 54322, -1)
    with pytest.raises(OSError, match="another user"):
        run_folder.make(NAME % 0)
