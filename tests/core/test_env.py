"""`ddp-patches env`: what it prints has, where it is used, the effect of `ddp-patches run`."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest

from ddp_patches import propagation
from ddp_patches.cli import env
from support import interpreters

pytestmark = pytest.mark.skipif(os.name != "posix", reason="POSIX shells")

SHELLS = [name for name in ("sh", "bash", "zsh") if shutil.which(name)]
ODD = 'it\'s a $HOME "folder"; x'

SHOW = (
    "import os, sys, json; print(json.dumps("
    "{'armed': any(hasattr(f, 'waits_for_torch') for f in sys.meta_path),"
    " 'environ': dict(os.environ)}))"
)


@pytest.fixture(params=["plain", "odd"])
def parent(request, tmp_path):
    """The folder that holds the package: the real one, or one whose name needs every kind of quoting."""
    if request.param == "plain":
        return interpreters.PACKAGE_PARENT
    folder = tmp_path / ODD
    shutil.copytree(interpreters.PACKAGE_PARENT / "ddp_patches", folder / "ddp_patches")
    return folder


def printed(parent, *options, **variables):
    """What `ddp-patches env` prints, and the environment in which it was asked."""
    # By sys.path, not PYTHONPATH: the variable under test must hold what the user has, nothing else.
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from ddp_patches.cli.main import main;"
        "sys.exit(main())"
    )
    environ = interpreters.plain_environment(**variables)
    finished = interpreters.run([sys.executable, "-c", code, parent, "env", *options], environ)
    assert finished.code == 0, finished.err
    assert finished.err == ""
    return finished.out, environ


def evaluate(shell, script, environ):
    """Run shell code and then our Python; returns what that saw."""
    finished = interpreters.run([shell, "-c", f'{script}\n"$PYTHON" -c "$SHOW"'], environ)
    assert finished.code == 0, finished.err
    assert finished.err == ""
    return json.loads(finished.out)


def without_helpers(environ):
    return {
        name: value
        for name, value in environ.items()
        if name not in ("PYTHON", "SHOW", "TEXT", "_", "PWD", "OLDPWD", "SHLVL")
    }


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("python_path", [None, "/a b:/c:"])
def test_shell(parent, shell, python_path):
    """Evaluated twice, as a script does that calls another script: the second time changes nothing."""
    variables = {} if python_path is None else {"PYTHONPATH": python_path}
    text, environ = printed(parent, "--timeout", "4h", "--skip", "a,b*", **variables)
    environ.update(PYTHON=sys.executable, SHOW=SHOW, TEXT=text)
    bootstrap = str(parent / "ddp_patches" / "bootstrap")
    seen = evaluate(shell, 'eval "$TEXT"; eval "$TEXT"', environ)
    assert seen["armed"]
    assert seen["environ"]["PYTHONPATH"] == ":".join([bootstrap] + ([python_path] if python_path else []))
    assert seen["environ"]["DDP_PATCHES_TIMEOUT"] == "4h"
    assert seen["environ"]["DDP_PATCHES_SKIP"] == "a,b*"


@pytest.mark.parametrize("shell", [name for name in SHELLS if name != "zsh"])
def test_shell_without_the_quotes(shell):
    """eval $(ddp-patches env) joins all lines into one: a comment would eat the rest."""
    text, environ = printed(interpreters.PACKAGE_PARENT)
    environ.update(PYTHON=sys.executable, SHOW=SHOW, TEXT=text)
    assert evaluate(shell, "eval $TEXT", environ)["armed"]


def test_shell_under_nounset_and_errexit():
    """sbatch files often begin with `set -euo pipefail`."""
    text, environ = printed(interpreters.PACKAGE_PARENT)
    environ.update(PYTHON=sys.executable, SHOW=SHOW, TEXT=text)
    assert evaluate("sh", 'set -eu; eval "$TEXT"', environ)["armed"]


@pytest.mark.parametrize("python_path", [None, "/a b:/c:"])
def test_off_restores_the_shell(parent, python_path):
    variables = {"DDP_PATCHES_RUN_DIR": "none"}
    if python_path is not None:
        variables["PYTHONPATH"] = python_path
    on, environ = printed(parent, **variables)
    environ.update(PYTHON=sys.executable, SHOW=SHOW, TEXT=on)
    armed = evaluate("sh", 'eval "$TEXT"', environ)["environ"]
    off, _ = printed(
        parent, "--off", **{name: armed[name] for name in armed if name.startswith(("DDP", "PYTHONP"))}
    )
    seen = evaluate("sh", 'eval "$TEXT"', {**armed, "TEXT": off})
    assert not seen["armed"]
    assert without_helpers(seen["environ"]) == without_helpers(environ)


def test_off_where_nothing_was_on_changes_nothing():
    off, environ = printed(interpreters.PACKAGE_PARENT, "--off", PYTHONPATH="/a")
    environ.update(PYTHON=sys.executable, SHOW=SHOW, TEXT=off)
    assert without_helpers(evaluate("sh", 'set -eu; eval "$TEXT"', environ)["environ"]) == without_helpers(
        environ
    )


@pytest.mark.parametrize("python_path", [None, "/a b:/c"])
def test_docker(parent, python_path):
    """A Dockerfile's double quotes, escapes and ${NAME:+word} are a subset of the shell's."""
    text, environ = printed(parent, "--format", "docker", "--timeout", "4h")
    lines = text.splitlines()
    assert all(line.startswith("ENV ") for line in lines)
    script = "".join(f"export {line[4:]};\n" for line in lines)
    if python_path is not None:
        environ["PYTHONPATH"] = python_path
    environ.update(PYTHON=sys.executable, SHOW=SHOW)
    seen = evaluate("sh", script, environ)
    bootstrap = str(parent / "ddp_patches" / "bootstrap")
    assert seen["armed"]
    assert seen["environ"]["PYTHONPATH"] == ":".join([bootstrap] + ([python_path] if python_path else []))
    assert seen["environ"]["DDP_PATCHES_TIMEOUT"] == "4h"


def test_docker_off():
    assert printed(interpreters.PACKAGE_PARENT, "--format", "docker", "--off")[0] == "ENV DDP_PATCHES=0\n"


def test_json(parent):
    text, environ = printed(parent, "--format", "json", "--no-propagate", PYTHONPATH="/a")
    changes = json.loads(text)
    assert changes["PYTHONPATH"] == f"{parent / 'ddp_patches' / 'bootstrap'}{os.pathsep}/a"
    assert changes["DDP_PATCHES_PROPAGATE"] == "0"
    finished = interpreters.run([sys.executable, "-c", SHOW], {**environ, **changes})
    assert json.loads(finished.out)["armed"]


def test_json_off_names_what_goes():
    environ = interpreters.plain_environment(PYTHONPATH="/a")
    propagation.arm(environ, {"timeout": "4h"})
    variables = {name: value for name, value in environ.items() if name.startswith(("DDP", "PYTHON"))}
    text, _ = printed(interpreters.PACKAGE_PARENT, "--format", "json", "--off", **variables)
    assert json.loads(text) == {
        "PYTHONPATH": "/a",
        "DDP_PATCHES_ARMED": None,
        "DDP_PATCHES_KEYWORDS": None,
        "DDP_PATCHES_TIMEOUT": None,
    }


def test_a_bad_setting_gets_a_line_and_stops_nothing(capsys, monkeypatch):
    from ddp_patches.cli.main import main

    monkeypatch.delenv("DDP_PATCHES_STRICT", raising=False)
    assert main(["env", "--timeout", "soon"]) == 0
    captured = capsys.readouterr()
    assert "DDP_PATCHES_TIMEOUT='soon'" in captured.err
    assert "PYTHONPATH" in captured.out
    assert main(["env", "--timeout", "soon", "--strict"]) == 2


def test_a_folder_that_cannot_be_on_python_path_is_an_error(capsys, monkeypatch, tmp_path):
    from ddp_patches.cli.main import main

    monkeypatch.setattr(propagation, "PACKAGE_DIRECTORY", str(tmp_path / "a:b"))
    assert main(["env"]) == 2
    assert "':' in its name" in capsys.readouterr().err


def test_docker_quoting():
    assert env._docker_quote('a"b\\c$d') == '"a\\"b\\\\c\\$d"'
