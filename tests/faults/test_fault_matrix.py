"""What goes wrong and where: the table that patches.md prints, cell by cell, with two ranks over gloo."""

from __future__ import annotations

import concurrent.futures
import os

import pytest

pytest.importorskip("torch")

from ddp_patches.cli import faults
from support import faulting
from support.processes import Processes

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")

TABLE = faults.load()
CELLS = TABLE["cells"]
FAULTS = list(TABLE["faults"])
PLACES = list(TABLE["places"])
AT_A_TIME = 3  # a job mostly waits; only its start needs the cores

# After which a job hangs: the limits of faulting.SETTINGS, and what a busy machine needs beside them.
_MARGIN_SECONDS = 45
BOUND_SECONDS = {
    "at once": _MARGIN_SECONDS,
    "own limit": 15 + _MARGIN_SECONDS,
    "own limit + 30 s": 45 + _MARGIN_SECONDS,
    "zero_first_timeout": 25 + _MARGIN_SECONDS,
    "zero_first_timeout + 30 s": 55 + _MARGIN_SECONDS,
    "timeout": 40 + _MARGIN_SECONDS,
    "open": 15,
}


def name_of(cell):
    return "%s/%s" % (cell["fault"], cell["place"])


def run(folder, cells, patched=True):
    """The outcomes of cells, several of which run side by side."""
    starters = []
    for cell in cells:
        path = folder / name_of(cell).replace("/", "-").replace(" ", "-")
        path.mkdir()
        starters.append(Processes(path))
    waiting = list(range(len(cells)))

    def run_one(number):
        if number in waiting:
            cell = cells[number]
            running = faulting.start(starters[number], cell["started"], cell["fault"], cell["place"], patched)
            return faulting.watch(running, cell["fault"], BOUND_SECONDS[cell["over"]])

    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        try:
            return list(pool.map(run_one, range(len(cells))))
        finally:  # also when somebody interrupts the tests
            waiting.clear()
            for starter in starters:
                starter.end()


def expected_codes(cell):
    """By the name of the process."""
    if cell["started"] != "ranks":
        return {cell["started"]: cell["launcher"] if cell["over"] != "open" else None}
    struck, other = ("rank0", "rank1") if cell["place"] == "leader" else ("rank1", "rank0")
    return {struck: cell["it"], other: cell["others"]}


def differences(cell, outcome):
    """Between the table and what has happened."""
    found = []
    if outcome.codes != expected_codes(cell):
        found.append("exit codes %s instead of %s" % (outcome.codes, expected_codes(cell)))
    is_open = cell["over"] == "open"
    if outcome.running != ([1] if is_open else []):
        found.append("ranks %s have not ended" % outcome.running)
    if not is_open and outcome.left:
        found.append("processes %s are left" % outcome.left)
    found += ["the log does not have %r" % text for text in cell["log"] if text not in outcome.log]
    return found


def check(folder, cells):
    outcomes = run(folder, cells)
    wrong = [
        "%s: %s\n%s" % (name_of(cell), "; ".join(differences(cell, outcome)), outcome.log)
        for cell, outcome in zip(cells, outcomes)
        if differences(cell, outcome)
    ]
    assert not wrong, "\n\n".join(wrong)


# These three wait for time limits, for a minute each.
SLOW = ("stop", "loop", "sleep")


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.matrix) if fault in SLOW else fault for fault in FAULTS]
)
def test_one_cell_of_each_fault_and_place(tmp_path, fault):
    check(tmp_path, [cell for cell in CELLS if cell["fault"] == fault and cell.get("everyday")])


@pytest.mark.matrix
@pytest.mark.parametrize("fault", FAULTS)
def test_the_others(tmp_path, fault):
    check(tmp_path, [cell for cell in CELLS if cell["fault"] == fault and not cell.get("everyday")])


def test_the_cells_that_are_run_first_have_every_fault_and_place():
    everyday = [cell for cell in CELLS if cell.get("everyday")]
    assert {cell["fault"] for cell in everyday} == set(FAULTS)
    assert {cell["place"] for cell in everyday} == set(PLACES)


def test_every_cell_is_there_once_or_has_a_reason():
    named = [name_of(cell) for cell in CELLS]
    assert len(named) == len(set(named))
    everything = {"%s/%s" % (fault, place) for fault in FAULTS for place in PLACES}
    assert set(named) <= everything
    for missing in everything - set(named):
        assert any(missing in reason for reason in TABLE["absent"]), missing


def test_without_us_the_log_names_nobody(tmp_path):
    """The same jobs end by themselves, since the limit of the group is short here, but nobody is told why."""
    cells = [
        cell for cell in CELLS if name_of(cell) in ("kill/reduction", "exit/reduction", "exception/backward")
    ]
    for cell, outcome in zip(cells, run(tmp_path, cells, patched=False)):
        assert not all(text in outcome.log for text in cell["log"]), outcome.log
