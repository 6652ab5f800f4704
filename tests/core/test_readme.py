"""The README at three in the morning: whatever it tells people to type, set or open must exist."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import ddp_patches
from ddp_patches import settings
from ddp_patches.cli import main
from support import interpreters

ROOT = pathlib.Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
HERE = interpreters.plain_environment(PYTHONPATH=str(interpreters.PACKAGE_PARENT))

# `code`, in a sentence, a table or a block of its own.
SNIPPETS = re.findall(r"`+([^`]+)`+", TEXT)
COMMANDS = re.findall(r"ddp-patches ((?:[a-z]+)(?: [^`|\n]*)?)", "\n".join(SNIPPETS))


def words_of(command):
    """Its words up to `--`. What stands in `eval "$(…)"` ends in quotes of the shell."""
    words = shlex.split(re.sub(r'\)?"\s*$', "", command))
    return words[: words.index("--")] if "--" in words else words


def help_of(command, cache={}):  # noqa: B006
    if command not in cache:
        cache[command] = interpreters.run([sys.executable, "-m", "ddp_patches", command, "--help"], HERE).out
    return cache[command]


def test_the_table_of_settings_is_what_the_code_says():
    for row in settings.fields_table():
        line = "| `{variable}` | `{default}` | {help} | `{example}` |".format(**row)
        assert line in TEXT, "the README's table has no such line:\n%s" % line


def test_no_setting_is_invented():
    named = set(re.findall(r"\bDDP_PATCHES_[A-Z_]+", TEXT))
    known = {row["variable"] for row in settings.fields_table()} | settings.INTERNAL_VARIABLES
    assert named <= known


def test_every_command_is_named_and_exists():
    named = {words_of(command)[0] for command in COMMANDS}
    assert named == set(main.COMMANDS)


@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_every_option_exists(command):
    name, *rest = words_of(command)
    for word in rest:
        if word.startswith("-"):
            assert re.search(r"(?<![\w-])%s\b" % re.escape(word), help_of(name)), word


def test_options_that_stand_alone_belong_to_some_command():
    everything = "".join(help_of(command) for command in main.COMMANDS)
    for option in re.findall(r"^--[a-z-]+", "\n".join(SNIPPETS), re.MULTILINE):
        assert option == "--" or re.search(r"(?<![\w-])%s\b" % option, everything), option


def test_what_is_said_of_python_code_exists():
    for name in re.findall(r"\bddp_patches\.(\w+)", TEXT):
        assert name == "auto" or hasattr(ddp_patches, name), name


def test_every_patch_that_is_named_exists():
    listed = interpreters.run([sys.executable, "-m", "ddp_patches", "list", "--json"], HERE)
    ids = {entry["id"] for entry in json.loads(listed.out)["patches"]}
    of_a_framework = re.compile(r"(torch|ultralytics|yolov5|mm[a-z0-9]+)\.[a-z_]+")
    named = {snippet for snippet in SNIPPETS if of_a_framework.fullmatch(snippet)} - {"torch.distributed"}
    named |= set(re.findall(r"DDP_PATCHES_SKIP=([a-z_.]+)", TEXT))
    assert named and named <= ids


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", TEXT):
        assert target.startswith("https://") or (ROOT / target).is_file(), target


def test_the_nox_sessions_exist():
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    for session in re.findall(r"nox -s (\w+)", TEXT):
        assert "\ndef %s(session" % session in noxfile


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_shell_lines_are_valid():
    """`eval "$(ddp-patches env)"` and the like: bash reads them without running them."""
    lines = [snippet for snippet in SNIPPETS if snippet.startswith(("eval ", "srun ", "ddp-patches "))]
    assert lines
    for line in lines:
        checked = subprocess.run(["bash", "-n", "-c", line], capture_output=True, text=True, timeout=20)
        assert checked.returncode == 0, checked.stderr
