"""Which rank of a launch failed first: decided from what ranks and launcher have written."""

from __future__ import annotations

import json
import socket
import types

import pytest

from ddp_patches.runtime import failure_folder, failures, family, first_failure, launched, port
from ddp_patches.runtime.first_failure import Ended


def raised(rank, time, code=1):
    return Ended(rank, 100 + rank, code, time, "host", "KeyError: 'x'", "Traceback of %d" % rank)


def silent(rank, code):
    return Ended(rank, 100 + rank, code, None)


@pytest.mark.parametrize(
    ("failures", "root"),
    [
        ([raised(0, 5.2), raised(1, 5.1)], 1),  # torch's report knows whole seconds only
        ([raised(0, 5.0), silent(1, -9)], 1),  # its peers fail within milliseconds
        ([raised(0, 5.0), silent(1, -11)], 1),
        ([raised(0, 5.0), silent(1, -15)], 0),  # ended by the launcher afterwards
        ([raised(1, 5.0), silent(0, -6)], 1),  # a backend that gives up on its peers
        ([raised(1, 5.0), silent(0, 1)], 1),
        ([silent(0, -15), silent(1, 3)], 1),
        ([silent(0, -15)], 0),
        ([raised(0, 7.0, code=-15), raised(1, 6.0, code=None)], 1),
    ],
)
def test_first(failures, root):
    assert first_failure.first(failures).rank == root
    assert first_failure.first(failures[::-1]).rank == root


def test_nothing_is_known():
    assert first_failure.first([]) is None
    assert first_failure.text([]) == ""
    assert "EADDRINUSE" in first_failure.text([], launchers="RuntimeError: EADDRINUSE")


@pytest.fixture
def rank(tmp_path, monkeypatch):
    """This process is rank 1 of a launch whose folder is tmp_path, and has not failed yet."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(failure_folder._Folders, "rank", str(tmp_path))
    monkeypatch.setattr(failures, "_reported", False)


def test_what_the_parent_reads(rank, tmp_path):
    try:
        {}["mosaic"]
    except KeyError as error:
        failures.report(error)
        failures.report(ValueError("a consequence of it"))
    (written,) = tmp_path.iterdir()
    fields = ["host", "kind", "message", "pid", "place", "rank", "time", "trace"]
    assert sorted(json.loads(written.read_text())) == fields
    ended = RuntimeError()
    ended.failures = {
        rank: types.SimpleNamespace(pid=100 + rank, exitcode=code) for rank, code in enumerate((-15, 1))
    }
    first_failure.write_launcher(str(tmp_path), ended)
    by_rank = {failure.rank: failure for failure in first_failure.read(str(tmp_path))}
    assert by_rank[1].exit_code == 1
    assert by_rank[1].summary == "KeyError: 'mosaic'"
    assert by_rank[0].exit_code == -15
    told = first_failure.text(list(by_rank.values()))
    assert told.startswith("Rank 1 (")
    assert "After it: rank 0, ended by signal 15 (SIGTERM)." in told


def test_an_exit_after_success_is_no_failure(rank, tmp_path):
    for code in (None, 0):
        failures.report(SystemExit(code))
    failures.report(KeyboardInterrupt())
    assert first_failure.read(str(tmp_path)) == []
    failures.report(SystemExit(3))
    assert len(first_failure.read(str(tmp_path))) == 1


def test_a_traceback_does_not_steer_the_terminal():
    nasty = raised(0, 1.0)._replace(traceback="\x1b[2J gone")
    assert "\x1b" not in first_failure.text([nasty])


def test_killed_for_lack_of_memory():
    assert "ended 2 process(es)" in first_failure.text([silent(1, -9)], memory_kills=2)
    assert "Nearly always" in first_failure.text([silent(1, -9)])


@pytest.mark.parametrize("text", ["", "1", "{}", "[]", '{"parent": 5, "launcher": null}', "\x00"])
def test_a_variable_that_holds_no_launch(text):
    assert launched.decode(text) is None


def test_a_launch_survives_the_environment():
    this = family.this_process()
    launch = launched.Launch(this, "node", "/folder", ("a.py", "a.pt"), ("--x", "1"), "a.py", "/library")
    assert launched.decode(launch.encode()) == launch
    assert launched.decode(launch.with_launcher(this).encode()).launcher == this


@pytest.mark.skipif(not port.is_possible(), reason="no port can be kept on this system")
def test_a_kept_port_lets_through_who_reuses_addresses():
    number, keeper = port.keep_another()
    with keeper, socket.socket() as probe, socket.socket() as store:
        assert port.keep(number) is None
        with pytest.raises(OSError, match="in use"):
            probe.bind(("127.0.0.1", number))
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("", number))
        store.listen()


def test_a_second_launch_of_a_process_knows_nothing_of_the_first(monkeypatch, tmp_path):
    """As in a search for hyperparameters, where a training that fails is followed by another one."""
    monkeypatch.setattr(failure_folder._Folders, "launch", "")
    monkeypatch.delenv(failure_folder.VARIABLE, raising=False)
    monkeypatch.delenv("RANK", raising=False)
    environ = {}
    failure_folder.prepare(environ)
    folder = environ[failure_folder.VARIABLE]
    monkeypatch.setenv(failure_folder.VARIABLE, folder)
    monkeypatch.setattr(failure_folder._Folders, "rank", folder)
    failure_folder.note(1, json.dumps({"time": 5.0}))
    assert failure_folder.earliest_of_launch() and failure_folder.earliest()
    failure_folder.prepare(environ)
    assert environ[failure_folder.VARIABLE] == folder and failure_folder.earliest_of_launch() == ""


def test_who_uses_whose_folder(monkeypatch, tmp_path):
    """A launcher below Ultralytics' parent uses the parent's; a rank that launches something does not."""
    monkeypatch.setattr(failure_folder._Folders, "launch", "")
    launcher, rank = ({failure_folder.VARIABLE: str(tmp_path)} for _ in range(2))
    rank["RANK"] = "0"
    failure_folder.prepare(launcher)
    failure_folder.prepare(rank)
    assert launcher[failure_folder.VARIABLE] == str(tmp_path)
    assert rank[failure_folder.VARIABLE] not in ("", str(tmp_path))
