"""The tests' own helpers: one that lets processes escape or hides a hang makes every other test worthless."""

from __future__ import annotations

import os
import signal
import sys
import textwrap

import pytest

from support import environment, ranks
from support.processes import is_running

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="descendants are found in /proc")


def python(program):
    return [sys.executable, "-c", textwrap.dedent(program)]


def test_output_and_exit_code_are_kept(processes, tmp_path):
    program = """
        import sys
        print('{"a": 1}')
        sys.stderr.write("oh")
        sys.exit(3)
        """
    result = processes.run(python(program), environment.clean(tmp_path))
    assert (result.returncode, result.answer, result.stderr, result.timed_out) == (3, {"a": 1}, "oh", False)
    result.check(3)
    with pytest.raises(AssertionError, match="oh"):
        result.check()


def test_a_signal_is_the_exit_code(processes, tmp_path):
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert processes.run(python(program), environment.clean(tmp_path)).returncode == -signal.SIGKILL


def test_a_hanging_command_is_ended_and_shows_where_it_stood(processes, tmp_path):
    program = """
        import time
        def the_place(): time.sleep(60)
        the_place()
        """
    result = processes.run(python(program), environment.clean(tmp_path), limit=1)
    assert result.timed_out and result.returncode is None
    assert not is_running(result.pid)
    assert "the_place" in result.stderr
    with pytest.raises(AssertionError, match="ended at its limit"):
        result.check()


@needs_proc
def test_a_descendant_with_a_session_of_its_own_is_reported_and_ended(processes, tmp_path):
    """torchrun gives every worker its own session: ending the command's group does not reach them."""
    program = """
        import subprocess, sys
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        child = subprocess.Popen(command, start_new_session=True)
        print('{"child": %d}' % child.pid)
        """
    result = processes.run(python(program), environment.clean(tmp_path)).check()
    assert result.leftovers == [result.answer["child"]]
    assert not is_running(result.answer["child"])


def test_what_a_test_leaves_running_is_ended_with_it(processes, tmp_path):
    program = "import time; print('up', flush=True); time.sleep(60)"
    running = processes.start(python(program), environment.clean(tmp_path))
    running.wait_for("up", limit=20)
    processes.end()
    assert running.popen.returncode == -signal.SIGKILL


def test_waiting_for_a_text_that_never_comes_fails_with_the_output(processes, tmp_path):
    running = processes.start(python("print('something else')"), environment.clean(tmp_path))
    with pytest.raises(AssertionError, match="something else"):
        running.wait_for("up", limit=20)


def test_environment_is_free_of_launchers_and_of_ours(monkeypatch, tmp_path):
    inherited = [
        "DDP_PATCHES",
        "DDP_PATCHES_TIMEOUT",
        "RANK",
        "MASTER_PORT",
        "SLURM_JOB_ID",
        "TORCHELASTIC_ID",
    ]
    for name in inherited:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    result = environment.clean(tmp_path, tmp_path / "layer", RANK="5")
    assert result["RANK"] == "5"
    assert not [name for name in inherited if name in result and name != "RANK"]
    assert result["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "layer")
    assert "/somewhere" not in result["PYTHONPATH"]


def test_ranks_are_numbered_over_nodes_and_have_their_own_environment(processes, tmp_path):
    program = """
        import json, os
        names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "OWN", "ALL")
        print(json.dumps({name: os.environ.get(name) for name in names}))
        """
    results = ranks.run(
        processes,
        program,
        environment.clean(tmp_path, ALL="all"),
        count=4,
        nodes=2,
        each={3: {"OWN": "yes", "ALL": ""}},
    )
    assert [result.check().answer for result in results] == [
        {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "OWN": None, "ALL": "all"},
        {"RANK": "1", "LOCAL_RANK": "1", "GROUP_RANK": "0", "OWN": None, "ALL": "all"},
        {"RANK": "2", "LOCAL_RANK": "0", "GROUP_RANK": "1", "OWN": None, "ALL": "all"},
        {"RANK": "3", "LOCAL_RANK": "1", "GROUP_RANK": "1", "OWN": "yes", "ALL": None},
    ]


def test_the_ranks_share_one_limit(processes, tmp_path):
    results = ranks.run(processes, "import time; time.sleep(60)", environment.clean(tmp_path), limit=1)
    assert [result.timed_out for result in results] == [True, True]
