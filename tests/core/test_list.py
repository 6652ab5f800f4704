"""`ddp-patches list`: the catalogue as text, JSON and patches.md, which must not lag behind the patches."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

from ddp_patches.cli import list as list_command
from ddp_patches.cli import main
from ddp_patches.engine import catalogue
from ddp_patches.engine.patch import Patch, Target, Variant
from support import interpreters

PAGE = pathlib.Path(__file__).parents[2] / "patches.md"
HERE = interpreters.plain_environment(PYTHONPATH=str(interpreters.PACKAGE_PARENT))


def printed(*words):
    """What the command prints, in a process of its own: other tests declare patches in this one."""
    finished = interpreters.run([sys.executable, "-m", "ddp_patches", "list", *words], HERE)
    assert (finished.code, finished.err) == (0, "")
    return finished.out


def test_patches_md_is_what_the_patches_say_of_themselves():
    assert PAGE.read_text(encoding="utf-8") == printed("--markdown"), (
        "patches.md is stale; refresh it: %s" % list_command.REFRESH
    )


def test_every_patch_says_what_a_reader_needs():
    """style.md: docstring of a patch says what, why, upstream, since, and when it can go."""
    for entry in json.loads(printed("--json"))["patches"]:
        for field in ("summary", "why", "upstream", "since", "remove_when"):
            assert entry[field], "%s has no %s" % (entry["id"], field)
        assert entry["upstream"].startswith("https://")
        assert entry["targets"]


def test_text_and_json_have_the_same_ids():
    ids = [entry["id"] for entry in json.loads(printed("--json"))["patches"]]
    assert "torch.process_group_timeout" in ids
    assert ids == sorted(set(ids), key=ids.index)
    text = printed()
    assert [id for id in ids if re.search("^%s " % re.escape(id), text, re.MULTILINE)] == ids
    assert max(map(len, text.splitlines())) <= 100


def test_stand_ins_of_a_rehearsal_are_not_listed():
    """They are patches too, but nobody meets them in a training."""
    assert "rehearse" not in printed("--json")


def test_an_entry_names_targets_and_versions():
    patch = Patch("a.b", "frame", "does it", "it was not done", "https://x", "0.1.0", "it is done",
                  tested=("1.0", "1.1"), fixed_in=">=2")  # fmt: skip
    target = Target.parse("frame.new|frame.old:Class.f")
    for versions in ("<1.5", ">=1.5"):
        patch.variants.append(Variant(target, versions, (), lambda original: original))
    text = list_command.markdown([patch])
    assert "| [`a.b`](#ab) | does it |" in text
    assert "## a.b\n\nDoes it.\n\n- Why: It was not done.\n- Upstream: <https://x>\n" in text
    assert "- Tested on: frame 1.0, 1.1\n" in text
    assert "- Not needed on: frame >=2\n" in text
    assert "  - `Class.f` in `frame.new` or `frame.old` (frame <1.5; frame >=1.5)\n" in text


def test_a_reader_that_leaves_is_no_error():
    """`ddp-patches list --markdown | head -1`."""
    command = "%s -m ddp_patches list --markdown | head -1" % sys.executable
    done = subprocess.run(["sh", "-c", command], env=HERE, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("# Patches\n", "")


def test_the_command_prints_what_is_loaded(capsys):
    assert main.main(["list"]) == 0
    text = capsys.readouterr().out
    assert all(patch.id in text for patch in catalogue.load())
