"""`ddp-patches run`: the command is exactly what the user typed, with the patches in every Python of it.

Promise 8, and point 3 of the doors: argv, exit code and signals are the command's own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from ddp_patches.cli import installations, run
from support import interpreters

pytestmark = pytest.mark.skipif(os.name != "posix", reason="exec, signals and shells of POSIX")

OURS = [sys.executable, "-m", "ddp_patches", "run"]

# Says what it was given, and whether it waits for torch.
SHOW = (
    "import json, os, sys; print(json.dumps({'argv': sys.argv[1:],"
    " 'armed': any(hasattr(f, 'waits_for_torch') for f in sys.meta_path),"
    " 'environ': {k: v for k, v in os.environ.items()"
    " if k.startswith(('DDP_', 'RANK', 'WORLD', 'LOCAL', 'MASTER'))}}))"
)


def start(arguments, folder=None, stdin="", **variables):
    environ = interpreters.plain_environment(PYTHONPATH=str(interpreters.PACKAGE_PARENT))
    environ.update(variables)
    return interpreters.run([*OURS, *arguments], environ, folder=folder, stdin=stdin)


def show(arguments, **keywords):
    finished = start(arguments, **keywords)
    assert finished.code == 0, finished.err
    return json.loads(finished.out), finished.err


# --- the command is the user's --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "separator, argv",
    [
        ([], []),
        (["--"], ["a", "", " ", "b c", "--", "-x", "--timeout", "9h", "--help"]),
        (["--"], ["--", "--", "@file", "-", "--version", "*", "$HOME", "'", '"', "\\"]),
        ([], ["--", "späte", "数据", "\udcff", "--", "--help"]),
    ],
)
def test_arguments_arrive_as_they_are(separator, argv):
    """\\udcff is how Python shows a byte that is no UTF-8."""
    seen, errors = show([*separator, sys.executable, "-c", SHOW, *argv])
    assert seen["argv"] == argv
    assert seen["armed"]
    assert errors == ""


def test_options_before_the_command_are_ours_and_behind_it_are_not():
    seen, _ = show(["--timeout", "4h", "--strict", sys.executable, "-c", SHOW, "--timeout", "1s"])
    assert seen["argv"] == ["--timeout", "1s"]
    assert seen["environ"]["DDP_PATCHES_TIMEOUT"] == "4h"
    assert seen["environ"]["DDP_PATCHES_STRICT"] == "1"


def test_exit_code():
    assert start([sys.executable, "-c", "raise SystemExit(37)"]).code == 37


def test_death_by_a_signal():
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert start([sys.executable, "-c", code]).code == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_the_command_itself(number):
    """Slurm and torchrun signal the process that they started: that must be the command itself."""
    code = (
        "import signal, sys\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(43))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    child = subprocess.Popen(
        [*OURS, "--", sys.executable, "-c", code],
        env=interpreters.plain_environment(PYTHONPATH=str(interpreters.PACKAGE_PARENT)),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert child.stdout.readline() == b"ready\n"
        os.kill(child.pid, number)
        assert child.wait(interpreters.LIMIT_S) == 43
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_pipe_that_closes_ends_the_command():
    """Python ignores SIGPIPE; if that stayed so, `yes` would complain, and others never end."""
    ours = " ".join(OURS)
    finished = interpreters.run(
        ["sh", "-c", f"{ours} -- yes | head -n 1"],
        interpreters.plain_environment(PYTHONPATH=str(interpreters.PACKAGE_PARENT)),
    )
    assert (finished.out, finished.err) == ("y\n", "")


def test_standard_input():
    assert start([sys.executable, "-"], stdin="print('from stdin')").out == "from stdin\n"


# --- whatever starts Python -----------------------------------------------------------------------------


@pytest.mark.parametrize("first_line", ["#!/bin/sh\n", ""])
def test_shell_script_that_starts_python(tmp_path, first_line):
    """Without a first line the kernel refuses it, and every shell runs it all the same."""
    script = tmp_path / "train.sh"
    script.write_text(f'{first_line}"{sys.executable}" show.py "$@"\nexit 5\n')
    script.chmod(0o755)
    (tmp_path / "show.py").write_text(SHOW)
    finished = start([script, "a b"], folder=tmp_path)
    assert finished.code == 5
    seen = json.loads(finished.out)
    assert (seen["armed"], seen["argv"]) == (True, ["a b"])


def test_console_script_on_path(tmp_path):
    """What `yolo` and `torchrun` are."""
    script = tmp_path / "tool"
    script.write_text(f"#!{sys.executable}\n{SHOW}\n")
    script.chmod(0o755)
    seen, errors = show(["tool", "x"], PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert (seen["armed"], seen["argv"], errors) == (True, ["x"], "")


def test_python_minus_m_from_the_current_folder(tmp_path):
    (tmp_path / "tool.py").write_text(SHOW)
    seen, _ = show(["--", sys.executable, "-m", "tool", "x"], folder=tmp_path)
    assert (seen["armed"], seen["argv"]) == (True, ["x"])


def test_interactive_interpreter():
    finished = start(
        [sys.executable, "-i", "-q"],
        stdin="import sys; any(hasattr(f, 'waits_for_torch') for f in sys.meta_path)\n",
    )
    assert "True" in finished.out


# --- what cannot work is said in one line ---------------------------------------------------------------


def test_nothing_to_run():
    for arguments in ([], ["--"]):
        finished = start(arguments)
        assert finished.code == 2
        assert finished.err.count("\n") == 1
        assert "ddp-patches run -- python train.py" in finished.err


def test_command_not_found():
    finished = start(["no-such-command-here", "x"])
    assert finished.code == 127
    assert finished.err == "ddp-patches: cannot run no-such-command-here: No such file or directory\n"


def test_command_not_executable(tmp_path):
    (tmp_path / "plain").write_text("text")
    for path in (tmp_path / "plain", tmp_path):
        finished = start([path])
        assert finished.code == 126
        assert finished.err == f"ddp-patches: cannot run {path}: Permission denied\n"


def test_unknown_option_is_not_taken_for_the_command():
    finished = start(["--tmeout", "4h", "--", sys.executable, "-c", "pass"])
    assert finished.code == 2
    assert "--tmeout" in finished.err


def test_a_bad_setting_gets_a_line_and_stops_nothing():
    finished = start(["--timeout", "soon", sys.executable, "-c", "print('ran')"])
    assert (finished.code, finished.out, finished.err.count("\n")) == (0, "ran\n", 1)
    assert "DDP_PATCHES_TIMEOUT='soon'" in finished.err


def test_a_bad_setting_stops_where_strict_is_on():
    finished = start(["--strict", "--timeout", "soon", sys.executable, "-c", "print('ran')"])
    assert (finished.code, finished.out) == (2, "")


def test_every_setting_has_an_option_that_arrives():
    from ddp_patches import settings

    rows = settings.fields_table()
    options = [f"--{row['name'].replace('_', '-')}={row['example']}" for row in rows]
    switches = [row["name"] for row in rows if isinstance(getattr(settings.Settings(), row["name"]), bool)]
    options = [option.split("=")[0] if option[2:].split("=")[0] in switches else option for option in options]
    seen, errors = show([*options, sys.executable, "-c", SHOW])
    assert errors == ""
    for row in rows:
        expected = "1" if row["name"] in switches else row["example"]
        assert seen["environ"][row["variable"]] == expected


def test_a_switch_can_be_turned_off():
    seen, _ = show(["--no-propagate", sys.executable, "-c", SHOW])
    assert seen["environ"]["DDP_PATCHES_PROPAGATE"] == "0"
    assert seen["armed"]


@pytest.mark.parametrize(
    "command, expected",
    [
        (["srun", "python", "train.py"], "srun ... ddp-patches run -- python train.py"),
        (["/usr/bin/mpiexec.hydra", "-n", "2", "x"], "mpiexec ... ddp-patches run"),
        (["docker", "run", "image"], "in a container"),
        (["ssh", "host", "x"], "another machine"),
        ([sys.executable, "-E", "x.py"], "with -E"),
        ([sys.executable, "-sBI", "x.py"], "with -I"),
        ([sys.executable, "-W", "error", "-S", "x.py"], "with -S"),
        ([sys.executable, "-Werror", "x.py", "-E"], ""),
        ([sys.executable, "-m", "tool", "-I"], ""),
        ([sys.executable, "-c", "pass", "-I"], ""),
        ([sys.executable, "-X", "dev", "x.py"], ""),
        (["sh", "-E"], ""),
        (["no-such-command"], ""),
    ],
)
def test_warning(command, expected):
    said = run.warning(command, interpreters.plain_environment())
    assert expected in said
    assert bool(said) == bool(expected)


def test_a_command_elsewhere_is_warned_about_and_run_all_the_same(tmp_path):
    (tmp_path / "srun").write_text('#!/bin/sh\necho "ran $1"\n')
    (tmp_path / "srun").chmod(0o755)
    finished = start(["srun", "x"], PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert (finished.code, finished.out, finished.err.count("\n")) == (0, "ran x\n", 1)


def test_switched_off_is_said():
    finished = start([sys.executable, "-c", SHOW], DDP_PATCHES="0")
    assert json.loads(finished.out)["armed"] is False
    assert finished.err == "ddp-patches: DDP_PATCHES=0 is set: the command runs without any patch\n"


# --- the interpreter that a command would start ---------------------------------------------------------


def test_a_python_of_another_environment_is_warned_about(tmp_path):
    python = interpreters.venv(tmp_path / "venv")
    finished = start([python, "-c", SHOW])
    assert json.loads(finished.out)["armed"] is False
    assert finished.err.count("\n") == 1
    assert str(tmp_path / "venv") in finished.err


@pytest.mark.parametrize(
    "head",
    [
        "#!{python}\n",
        "#!/usr/bin/env -S python -u\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_a_console_script_of_another_environment_is_warned_about(tmp_path, head):
    python = interpreters.venv(tmp_path / "venv")
    script = tmp_path / "yolo"
    script.write_text(head.format(python=python))
    script.chmod(0o755)
    environ = interpreters.plain_environment(PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}")
    assert installations.interpreter_of([str(script)], environ) == str(python)
    assert str(tmp_path / "venv") in run.warning([str(script)], environ)


def test_our_own_python_is_recognised_by_its_files_alone():
    found = installations.installation_of(sys.executable)
    assert found in (None, installations.own())


@pytest.mark.parametrize("version", ["3.8", "3.12"])
def test_what_the_files_say_is_what_the_interpreter_says(version):
    python = interpreters.find(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    found = installations.installation_of(python)
    code = "import os, sys; print(os.path.realpath(sys.prefix))"
    real = interpreters.run([python, "-c", code], interpreters.plain_environment()).out.strip()
    assert found in (None, installations.Installation(real, version))


def test_where_the_files_do_not_tell_nothing_is_said(tmp_path):
    """pyenv's shims, wrappers of modules systems, `uv run`: a wrong warning would be worse than none."""
    shim = tmp_path / "python"
    shim.write_text('#!/usr/bin/env bash\nexec python3 "$@"\n')
    shim.chmod(0o755)
    environ = interpreters.plain_environment(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert run.warning(["python", "train.py"], environ) == ""
    link = tmp_path / "somewhere" / "python"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    other = installations.other_installation([str(link)], environ)
    # A link into a virtual environment starts the Python below it, as this Python itself would say.
    code = "import os, sys; print(os.path.realpath(sys.prefix))"
    prefix = interpreters.run([link, "-c", code], interpreters.plain_environment()).out.strip()
    assert other is None or other.prefix == prefix


# --- Slurm ----------------------------------------------------------------------------------------------

TASK = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_STEP_NODELIST": "gpu1",
}


def test_from_slurm_fills_the_variables():
    seen, errors = show(["--from-slurm", sys.executable, "-c", SHOW], **TASK)
    environ = seen["environ"]
    assert (environ["RANK"], environ["LOCAL_RANK"], environ["WORLD_SIZE"]) == ("1", "1", "2")
    assert (environ["LOCAL_WORLD_SIZE"], environ["MASTER_ADDR"]) == ("2", "127.0.0.1")
    assert environ["MASTER_PORT"].isdigit()
    assert errors == ""


def test_from_slurm_elsewhere_says_so_and_goes_on():
    seen, errors = show(["--from-slurm", sys.executable, "-c", SHOW])
    assert "RANK" not in seen["environ"]
    assert errors.count("\n") == 1
    assert "no Slurm job" in errors


def test_only_the_first_task_speaks():
    """64 tasks of one srun would print the same line 64 times."""
    arguments = ["--timeout", "soon", sys.executable, "-c", "pass"]
    assert start(arguments, **TASK).err == ""
    assert start(arguments, **{**TASK, "SLURM_PROCID": "0"}).err.count("\n") == 1
