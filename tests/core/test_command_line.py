"""`ddp-patches` itself: which command, and what becomes of Ctrl-C and of a reader that leaves."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys

import pytest

import ddp_patches
from ddp_patches.cli import main
from support import interpreters

HERE = interpreters.plain_environment(PYTHONPATH=str(interpreters.PACKAGE_PARENT))


@pytest.fixture
def command(monkeypatch):
    """Puts a function in the place of `ddp-patches status`."""

    def install(function):
        module = type(sys)("command")
        module.HELP = "for a test"
        module.add_arguments = lambda parser: parser.add_argument("--flag", action="store_true")
        module.run = function
        monkeypatch.setattr(main, "_load", lambda name: module)

    return install


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_a_module_of_the_expected_form(name):
    module = importlib.import_module(f"ddp_patches.cli.{name}")
    assert module.HELP
    assert "\n" not in module.HELP
    assert callable(module.add_arguments)
    assert callable(module.run)


def test_no_command_imports_torch_or_wrapt_before_it_runs():
    """`run` stands in front of every training, and all are imported for the overview."""
    code = (
        "import sys; from ddp_patches.cli import main; main.overview();"
        "print([name for name in ('torch', 'wrapt', 'ultralytics') if name in sys.modules])"
    )
    finished = interpreters.run([sys.executable, "-c", code], HERE)
    assert finished.out.strip() == "[]", finished.err


def test_without_a_command_there_is_an_overview(capsys):
    assert main.main([]) == 0
    text = capsys.readouterr().out
    for name in main.COMMANDS:
        assert f"\n  {name} " in text
    assert "ddp-patches run --" in text


def test_version(capsys):
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ddp-patches {ddp_patches.__version__}\n"


def test_python_minus_m():
    finished = interpreters.run([sys.executable, "-m", "ddp_patches", "--version"], HERE)
    assert finished.out == f"ddp-patches {ddp_patches.__version__}\n"


@pytest.mark.parametrize(
    "words, answer",
    [
        (["rnu"], "did you mean 'run'?"),
        (["sefltest"], "did you mean 'selftest'?"),
        (["sh", "train.sh"], "ddp-patches run -- sh"),
        (["--timeout", "4h"], "ddp-patches run --timeout"),
        (["qqqqqq"], "there are run, env"),
    ],
)
def test_a_wrong_command_is_answered_with_the_right_one(capsys, words, answer):
    assert main.main(words) == 2
    assert answer in capsys.readouterr().err


def test_the_commands_exit_code_and_arguments(command):
    seen = []
    command(lambda arguments: seen.append(arguments.flag) or 7)
    assert main.main(["status", "--flag"]) == 7
    assert seen == [True]


def test_ctrl_c_is_quiet(command, capsys):
    def interrupted(arguments):
        raise KeyboardInterrupt

    command(interrupted)
    assert main.main(["status"]) == 128 + signal.SIGINT
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_leaves_is_no_traceback():
    """`ddp-patches list | head -1`."""
    code = (
        "import sys; from ddp_patches.cli import main; module = type(sys)('command'); module.HELP = '';"
        "module.add_arguments = lambda parser: None; module.run = lambda arguments: print('x' * 10**6) or 0;"
        "main._load = lambda name: module; sys.exit(main.main(['status']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    child.stdout.close()
    errors = child.stderr.read()
    child.stderr.close()
    assert (child.wait(interpreters.LIMIT_S), errors) == (main.EXIT_BROKEN_PIPE, b"")
