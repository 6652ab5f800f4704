"""Where a rank stands, as a progress line says it: a place in the user's or the framework's code."""

from __future__ import annotations

import os
import sysconfig

import pytest

from ddp_patches.runtime import stacks

STDLIB = sysconfig.get_paths()["stdlib"]
SITE = os.path.join(STDLIB, "site-packages")


@pytest.mark.parametrize(
    "below",
    [
        os.path.join(STDLIB, "threading.py"),
        os.path.join(SITE, "torch", "utils", "data", "dataloader.py"),
        os.path.join(SITE, "tqdm", "std.py"),
        os.path.join(SITE, "ultralytics", "utils", "tqdm.py"),  # Ultralytics has its own since 8.3.190
        "<frozen importlib._bootstrap>",
    ],
)
def test_a_place_below_the_framework_is_not_the_telling_one(below):
    """ "rank 0 is in tqdm" tells nobody what it works on."""
    caller = (os.path.join(SITE, "ultralytics", "data", "build.py"), 188, "cache_labels")
    assert stacks.telling([(below, 1, "inner"), caller]) == caller
    assert stacks.describe(caller) == "data/build.py:188 in cache_labels"


def test_a_script_of_the_user_is_telling():
    script = ("/home/someone/train.py", 7, "main")
    assert stacks.telling([script]) == script


def test_where_nothing_else_is_there_the_innermost_place_is_said():
    inner = (os.path.join(STDLIB, "threading.py"), 1, "wait")
    assert stacks.telling([inner]) == inner
    assert stacks.describe(stacks.telling([])) == "an unknown place"
