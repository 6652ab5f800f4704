"""Who may rehearse: only what a running `ddp-patches rehearse` has started.

Guards the design's "a left-over variable must not turn a real job into a CPU run".
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from ddp_patches.rehearse import permit
from ddp_patches.runtime import identity
from support import interpreters

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="parents are read in /proc")

OBSTACLE = "import os; from ddp_patches.rehearse import permit; print(permit.obstacle(os.environ))"
STAND_INS = (
    "from ddp_patches.engine import catalogue;"
    "print([entry.id for entry in catalogue.load() if entry.id.startswith('rehearse.')])"
)


def run(code, value):
    environ = interpreters.plain_environment(PYTHONPATH=str(interpreters.PACKAGE_PARENT))
    environ[permit.VARIABLE] = value
    finished = interpreters.run([sys.executable, "-c", code], environ)
    assert finished.code == 0, finished.err
    return finished


@pytest.fixture
def other_process():
    """A process that lives, and has started nothing."""
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    yield process
    process.communicate()


def test_holds_for_what_its_giver_started():
    assert run(OBSTACLE, permit.give(2).encode()).out.strip() == ""


def test_holds_for_grandchildren_too():
    code = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', %r]))" % OBSTACLE
    assert run(code, permit.give(2).encode()).out.strip() == ""


def test_ends_with_its_giver(other_process):
    """The variable as it stays behind in a shell that was started inside a rehearsal."""
    pid = other_process.pid
    value = permit.Permit(2, pid, identity.start_time(pid), identity.node_key()).encode()
    other_process.communicate()
    assert "has ended" in run(OBSTACLE, value).out


def test_a_later_process_with_the_same_pid_is_not_the_giver():
    earlier = dataclasses.replace(permit.give(2), started="1")
    assert "has ended" in run(OBSTACLE, earlier.encode()).out


def test_does_not_hold_beside_the_rehearsal(other_process):
    """A batch system or a terminal multiplexer hands the variable to processes of its own."""
    pid = other_process.pid
    value = permit.Permit(2, pid, identity.start_time(pid), identity.node_key()).encode()
    assert "did not start this process" in run(OBSTACLE, value).out


def test_does_not_hold_on_another_machine():
    elsewhere = dataclasses.replace(permit.give(2), node="another")
    assert "another machine" in run(OBSTACLE, elsewhere.encode()).out


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1",
        "[]",
        "null",
        '{"ranks":2}',
        '{"ranks":"2","giver":1,"started":"1","node":"x"}',
        '{"ranks":true,"giver":1,"started":"1","node":"x"}',
        '{"ranks":2,"giver":0,"started":"1","node":"x"}',
        '{"ranks":2,"giver":1,"started":1,"node":"x"}',
        '{"ranks":2,"giver":1,"started":"1","node":"x","more":1}',
    ],
)
def test_other_values_are_none_of_ours(value):
    assert permit.decode(value) is None
    assert permit.obstacle({permit.VARIABLE: value}) == "its value is none of ours"


def test_encoding_is_reversible():
    given = permit.give(3)
    assert permit.decode(given.encode()) == given
    assert json.loads(given.encode())["ranks"] == 3


def test_stand_ins_enter_the_catalogue_under_a_permit_only():
    """Without this, the stand-ins could be in any process that has the variable."""
    found = run(STAND_INS, permit.give(2).encode())
    assert "rehearse.gloo" in found.out
    assert found.err == ""
    left_over = run(STAND_INS, dataclasses.replace(permit.give(2), started="1").encode())
    assert left_over.out.strip() == "[]"
    assert "nothing is rehearsed here" in left_over.err


def test_lines_say_that_they_come_from_a_rehearsal():
    code = STAND_INS + "; from ddp_patches import console; console.say('100% of a line')"
    assert "REHEARSAL 100% of a line" in run(code, permit.give(2).encode()).err
