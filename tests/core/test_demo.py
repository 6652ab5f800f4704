"""What the demo concludes: no run is called cured that needed no cure.

The lines are those that torch 2.13 and Ultralytics 8.4.190 printed.
"""

from __future__ import annotations

import pytest
from demo import verdict

LIMIT_S = 15.0
TIMED_OUT = (
    "[rank1]: RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
    "Timed out waiting 15000ms for recv operation to complete"
)
SCANNED = "[slow disk, a stand-in of the demo's] rank 0 has scanned 20 images in 25.1 s"


def ledger(*ranks: int, state: str = "applied", limit_s: float = LIMIT_S) -> dict[str, object]:
    row = {"id": verdict.CURE, "state": state}
    return {
        "ranks": [{"rank": rank, "patches": [row]} for rank in ranks],
        "limits": {"groups": [{"group": "default", "timeout": limit_s}]},
    }


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (1, TIMED_OUT, ""),
        (1, "a progress bar\r" + TIMED_OUT, ""),
        (0, TIMED_OUT, "did not die: it ended with exit code 0"),
        (None, TIMED_OUT, "did not die: it still ran"),
        (1, "ModuleNotFoundError: No module named 'cv2'", "not of the group's limit"),
        (1, TIMED_OUT.replace("15000ms", "1800000ms"), "not of the group's limit"),
    ],
)
def test_the_first_run_has_to_die_of_the_limit(code, output, expected):
    problem = verdict.problem_without(verdict.Ended(code, 40, output), LIMIT_S)
    assert expected in problem
    assert bool(problem) == bool(expected)


@pytest.mark.parametrize(
    ("code", "output", "missing", "found", "expected"),
    [
        (0, SCANNED, [], ledger(0, 1), ""),
        (None, SCANNED, [], ledger(0, 1), "did not end"),
        (1, SCANNED, [], ledger(0, 1), "did not train: it ended with exit code 1"),
        (0, SCANNED, ["weights/best.pt"], ledger(0, 1), "did not write weights/best.pt"),
        (0, "", [], ledger(0, 1), "did not take longer"),
        (0, SCANNED.replace("25.1", "9.9"), [], ledger(0, 1), "did not take longer"),
        (0, SCANNED, [], {}, "was applied on ranks []"),
        (0, SCANNED, [], ledger(0), "was applied on ranks [0]"),
        (0, SCANNED, [], ledger(0, 1, state="failed"), "was applied on ranks []"),
        (0, SCANNED, [], ledger(0, 1, limit_s=7200.0), "limit was not 15 s"),
    ],
)
def test_the_second_run_has_to_train_although_the_scan_was_longer_than_the_limit(
    code, output, missing, found, expected
):
    problem = verdict.problem_with(verdict.Ended(code, 60, output), LIMIT_S, missing, found)
    assert expected in problem
    assert bool(problem) == bool(expected)


def test_a_progress_bar_is_shown_now_and_then_and_without_its_bar():
    bar = "\r\x1b[K\x1b[34m\x1b[1mtrain: \x1b[0mScanning /d/labels... 2 images, 0 corrupt: %d%% ━━── 4/20"
    lines = verdict.lines_of("".join(bar % percent for percent in (15, 20, 25)))
    assert [verdict.shortened(line) for line in lines if verdict.is_shown(line)] == [
        "train: Scanning /d/labels... 2 images, 0 corrupt: 20%"
    ]


def test_what_the_job_died_of_is_shown():
    assert verdict.is_shown(TIMED_OUT)
    assert verdict.upstream_message("more\n" + TIMED_OUT + "\nmore", LIMIT_S) == TIMED_OUT
    assert not verdict.is_shown("[rank1]:     work.wait()")
