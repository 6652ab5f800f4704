"""`ddp-patches probe`: real children of every kind, and launchers that lose the environment in every way.

A probe that calls an unpatched process armed is worse than none, so most tests here are about the answer no.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

import pytest

from ddp_patches import propagation
from ddp_patches.cli import main, probe, probe_child, probe_kinds
from support import environment, interpreters, processes

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the launchers of these tests are shells")


def run(folder, *words, **variables):
    command = [sys.executable, "-m", "ddp_patches", "probe", *words]
    return interpreters.run(command, environment.clean(folder, **variables), folder)


def answer(folder, *words, code, **variables):
    finished = run(folder, "--json", *words, **variables)
    assert finished.code == code, finished
    return json.loads(finished.out)


def reasons(found):
    return [row["reason"] for row in found["processes"]]


def test_every_kind_of_child_is_armed(tmp_path):
    """Promise 8, for the ways of starting a child that need no torch."""
    found = answer(tmp_path, "--no-torch", code=0)
    rows = {row["kind"]: row for row in found["processes"]}
    assert found["armed"] is True
    tried = {kind for kind, row in rows.items() if not row["skipped"]}
    assert {"subprocess", "fork", "spawn", "bash", "python -E"} <= tried
    assert [kind for kind in tried if not rows[kind]["armed"]] == ["python -E"]
    assert rows["loader"]["skipped"]
    assert rows["torchrun"]["reason"] == "left out by --no-torch"
    pids = [rows[kind]["pid"] for kind in tried]
    assert len(set(pids)) == len(pids)
    assert {rows[kind]["engine"] for kind in tried} == {"waiting for torch", ""}
    assert not any(processes.is_running(pid) for pid in pids)


def test_python_e_is_known_to_be_out_of_reach(tmp_path):
    (row,) = [r for r in answer(tmp_path, "--no-torch", code=0)["processes"] if r["kind"] == "python -E"]
    assert row["expected"] is False
    assert row["armed"] is False
    assert "-E" in row["reason"]


@pytest.mark.parametrize(
    "variables, problem",
    [({"DDP_PATCHES": "0"}, "DDP_PATCHES=0"), ({"DDP_PATCHES_PROPAGATE": "off"}, "propagate")],
)
def test_what_is_turned_off_is_not_armed(tmp_path, variables, problem):
    found = answer(tmp_path, "--no-torch", code=1, **variables)
    assert problem in found["problem"]
    assert not any(row["armed"] for row in found["processes"])


def test_a_launcher_that_hands_the_environment_on(tmp_path):
    found = answer(tmp_path, "--", "env", "RANK=3", code=0)
    (row,) = found["processes"]
    assert (row["armed"], row["rank"], found["launcher"]) == (True, "3", ["env", "RANK=3"])


def test_words_after_a_second_double_dash_belong_to_the_launcher(tmp_path):
    """As in `probe -- srun -n 4 ddp-patches run --`."""
    words = ["env", "-i", sys.executable, "-m", "ddp_patches", "run", "--"]
    script = 'cd "%s" && exec "$@"' % interpreters.PACKAGE_PARENT
    found = answer(tmp_path, "--", "sh", "-c", script, "sh", *words, code=0)
    assert [row["armed"] for row in found["processes"]] == [True]


@pytest.mark.parametrize(
    "launcher, reason",
    [
        (["env", "-i"], "none of our variables"),
        (["env", "PYTHONPATH=/somewhere"], "PYTHONPATH has been replaced"),
        (["env", "-u", "PYTHONPATH"], "PYTHONPATH has been replaced"),
        (["env", "DDP_PATCHES=off"], "DDP_PATCHES=off"),
        (["env", "DDP_PATCHES_ARMED=3.1|/x|/y"], "another installation: 3.1, /x, /y"),
        (["sh", "-c", "set -- {probe}; shift; exec %s -I \"$@\"" % sys.executable], "-I"),
        (["sh", "-c", "set -- {probe}; shift; exec %s -S \"$@\"" % sys.executable], "-S"),
        (["false"], "ended with code 1"),
    ],
)  # fmt: skip
def test_a_launcher_that_does_not_is_told_why(tmp_path, launcher, reason):
    found = answer(tmp_path, "--", *launcher, code=1)
    assert [row["armed"] for row in found["processes"]] == [False]
    assert reason in reasons(found)[0]


def test_a_python_of_another_installation_is_told_apart(tmp_path):
    other = interpreters.venv(tmp_path / "other")
    script = 'set -- {probe}; shift; exec %s "$@"' % other
    found = answer(tmp_path, "--", "sh", "-c", script, code=1)
    assert "a Python of another installation" in reasons(found)[0]
    assert str(tmp_path / "other") in reasons(found)[0]


def test_another_start_up_file_that_comes_first_is_named(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sitecustomize.py").write_text("", encoding="utf-8")
    script = 'PYTHONPATH="%s:$PYTHONPATH" {probe}' % (tmp_path / "first")
    found = answer(tmp_path, "--", "sh", "-c", script, code=1)
    assert str(tmp_path / "first" / "sitecustomize.py") in reasons(found)[0]


RANKS = 'for i in 0 1; do RANK=$i WORLD_SIZE=%d {probe} | sed "s/^/[rank$i]: /" & done; wait'


def test_all_ranks_of_a_launcher_are_found_whatever_it_prints_before_their_lines(tmp_path):
    found = answer(tmp_path, "--", "sh", "-c", RANKS % 2, code=0)
    assert [row["rank"] for row in found["processes"]] == ["0", "1"]


def test_output_that_a_launcher_keeps_to_itself_is_found_too(tmp_path):
    script = "RANK=0 {probe} > /dev/null 2>&1"
    assert [row["rank"] for row in answer(tmp_path, "--", "sh", "-c", script, code=0)["processes"]] == ["0"]


def test_ranks_without_an_answer_are_missed(tmp_path):
    found = answer(tmp_path, "--", "sh", "-c", RANKS % 3, code=1)
    assert [row["armed"] for row in found["processes"]] == [True, True, False]
    assert "1 of 3 processes gave no answer" in reasons(found)


def test_one_rank_that_is_not_armed_is_enough(tmp_path):
    """A mixed job runs as upstream; the exit code must say so."""
    script = "RANK=0 WORLD_SIZE=2 {probe}; RANK=1 WORLD_SIZE=2 PYTHONPATH= {probe}"
    found = answer(tmp_path, "--", "sh", "-c", script, code=1)
    assert [row["armed"] for row in found["processes"]] == [True, False]


def test_a_launcher_that_fails_afterwards_is_a_failure(tmp_path):
    finished = run(tmp_path, "--", "sh", "-c", "{probe}; echo 'no such partition' >&2; exit 3")
    assert finished.code == 1
    assert "the launcher itself ended with code 3" in " ".join(finished.out.split())
    assert "sh: no such partition" in finished.err


def test_a_launcher_that_hangs_is_ended_with_all_it_started(tmp_path):
    script = 'sleep 300 & echo $! > "%s"; wait; {probe}' % (tmp_path / "pid")
    found = answer(tmp_path, "--timeout", "2", "--", "sh", "-c", script, code=1)
    assert reasons(found) == ["gave no answer within 2 s"]
    assert not processes.is_running(int((tmp_path / "pid").read_text()))


def test_a_launcher_that_does_not_exist(tmp_path):
    finished = run(tmp_path, "--", "no-such-launcher")
    assert (finished.code, finished.out) == (2, "")
    assert "cannot run no-such-launcher" in finished.err


def test_a_system_without_a_folder_to_write_to(tmp_path, monkeypatch, capsys):
    """The kinds need one for their answers; the reason is one line."""

    def none(**given):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(probe.tempfile, "TemporaryDirectory", none)
    assert main.main(["probe"]) == 2
    assert capsys.readouterr().err == (
        "ddp-patches: cannot run the probe: No usable temporary directory found\n"
    )


def test_text_fits_and_leaves_nothing_behind(tmp_path):
    # Not below tmp_path: the path of forkserver's socket must be shorter than 108 characters.
    with tempfile.TemporaryDirectory() as temporary:
        finished = run(tmp_path, "--no-torch", TMPDIR=temporary)
        assert os.listdir(temporary) == []
    assert (finished.code, finished.err) == (0, "")
    assert max(map(len, finished.out.splitlines())) <= 100
    assert "python -E" in finished.out
    assert "as expected: started with -E" in " ".join(finished.out.split())


def test_the_child_itself_brings_nothing_of_ours(tmp_path):
    """Else every process would be armed by being asked."""
    program = (
        "import runpy, sys; sys.argv = ['child', 'token', '/nowhere'];"
        "runpy.run_path(%r, run_name='__main__');"
        "print([name for name in sys.modules if name.startswith('ddp_patches')])" % probe_kinds.CHILD
    )
    finished = interpreters.run([sys.executable, "-c", program], environment.clean(tmp_path))
    assert finished.out.splitlines()[-1] == "[]"
    assert '"armed": false' in finished.out


@pytest.mark.parametrize(
    "launcher, expected",
    [
        (["torchrun", "--nproc-per-node", "2"], True),
        (["/opt/bin/torchrun"], True),
        (["python", "-m", "torch.distributed.run"], True),
        (["accelerate", "launch"], True),
        (["srun", "-n", "2", "torchrun"], True),
        (["torchrun", "--no-python"], False),
        (["torchrun", "--no_python"], False),
        (["srun", "-n", "4"], False),
        (["mpirun", "-np", "2"], False),
    ],
)
def test_launchers_get_a_program_or_a_command(launcher, expected):
    assert probe_kinds.takes_a_program(launcher) is expected
    words = probe_kinds.launched(launcher, "token", "/folder")
    program = [probe_kinds.CHILD, "token", "/folder"]
    assert words == [*launcher, *program] if expected else [*launcher, sys.executable, *program]


def test_the_placeholder_may_be_a_word_or_inside_one():
    child = [sys.executable, probe_kinds.CHILD, "token", "/a folder"]
    assert probe_kinds.launched(["nice", "{probe}", "-x"], "token", "/a folder") == ["nice", *child, "-x"]
    inside = probe_kinds.launched(["sh", "-c", "a; {probe}"], "token", "/a folder")
    assert inside[2].startswith("a; ")
    assert inside[2].endswith("'/a folder'")


ARMED = {"armed": False, "marker": "3.9|/p|/d", "version": "3.9", "prefix": "/p", "on_path": True, "off": "",
         "switches": [], "sitecustomize": ""}  # fmt: skip


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"armed": True}, ""),
        ({"switches": ["-I", "-E"]}, "-I"),
        ({"off": "No"}, "DDP_PATCHES=No"),
        ({"marker": ""}, "none of our variables"),
        ({"marker": "3.8|/p|/d"}, "another installation: 3.8"),
        ({"version": "3.8"}, "a Python of another installation: 3.8"),
        ({"prefix": "/q"}, "a Python of another installation: 3.9 in /q"),
        ({"on_path": False}, "PYTHONPATH has been replaced"),
        ({"sitecustomize": "/x.py"}, "/x.py"),
        ({}, "DDP_PATCHES_TRACE=1"),
    ],
)
def test_reasons(changed, reason):
    assert reason in probe_kinds.why_not({**ARMED, **changed}, "3.9|/p|/d")
    assert bool(reason) == bool(probe_kinds.why_not({**ARMED, **changed}, "3.9|/p|/d"))


def test_answers_are_taken_from_lines_and_files_once_each(tmp_path):
    def line(token, pid, end=""):
        return "%s:%s %s%s" % (probe_child.MARK, token, json.dumps({"host": "h", "pid": pid}), end)

    (tmp_path / "h-1.json").write_text(json.dumps({"host": "h", "pid": 1}), encoding="utf-8")
    (tmp_path / "h-3.json").write_text(json.dumps({"host": "h", "pid": 3}), encoding="utf-8")
    output = "\n".join(
        ["0: " + line("t", 1), line("t", 2, " rest"), line("other", 9), "%s:t {broken" % probe_child.MARK]
    )
    assert sorted(facts["pid"] for facts in probe.answers_in(output, "t", str(tmp_path))) == [1, 2, 3]


def test_the_child_finds_the_bootstrap_that_is_put_on_the_path():
    assert propagation.bootstrap_directory() == probe_child._BOOTSTRAP
