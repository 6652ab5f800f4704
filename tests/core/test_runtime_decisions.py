"""The decisions of the job runtime as tables: limits, blocking wait, the barrier's device, the waits.

No torch and no ranks; tests/distributed carries them out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ddp_patches.patches.torch import barrier_device_ids
from ddp_patches.runtime import (
    blocking_wait,
    identity,
    limits,
    meeting,
    progress,
    records,
    start_line,
    waiting,
)

HOUR = 3600.0


@pytest.mark.parametrize(
    "caller, default, floor, in_force, set_by",
    [
        (10800.0, 1800.0, 2 * HOUR, 10800.0, "the caller"),  # longer: never shortened
        (60.0, 1800.0, 2 * HOUR, 2 * HOUR, "setting timeout; the caller: 60s"),
        (None, 600.0, 2 * HOUR, 2 * HOUR, "setting timeout; torch's default: 600s"),
        (None, 1800.0, 900.0, 1800.0, "torch's default"),
        (60.0, 1800.0, None, 60.0, "the caller"),  # keep
        (None, 1800.0, None, 1800.0, "torch's default"),
        (2 * HOUR, 1800.0, 2 * HOUR, 2 * HOUR, "the caller"),
    ],
)
def test_the_collectives_get_the_longer_limit_and_the_meeting_the_callers(
    caller, default, floor, in_force, set_by
):
    decision = limits.decide(caller, default, floor)
    assert decision.join == caller
    assert decision.caller == (default if caller is None else caller)
    assert (decision.caller if decision.collectives is None else decision.collectives) == in_force
    assert set_by in decision.set_by


@pytest.mark.parametrize(
    "caller, floor, in_force",
    [(60.0, 2 * HOUR, 60.0), (3 * HOUR, HOUR, 3 * HOUR), (None, 2 * HOUR, 2 * HOUR), (None, None, 600.0)],
)
def test_a_subgroup_keeps_an_explicit_limit_and_gets_the_floor_for_a_missing_one(caller, floor, in_force):
    decision = limits.decide_subgroup(caller, 600.0, floor)
    assert (decision.caller if decision.collectives is None else decision.collectives) == in_force


OLD, NEW = "NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"
OLD_ASYNC, NEW_ASYNC = "NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"


@pytest.mark.parametrize(
    "setting, at_start, now, new_torch, handled, changes",
    [
        # A framework has switched it on.
        ("auto", {}, {NEW: "1"}, True, True, {NEW: None}),
        ("auto", {}, {OLD: "1"}, True, True, {OLD: None}),
        # An old torch without torchrun would then have no limit at all.
        ("auto", {}, {OLD: "1"}, False, False, {OLD: None, OLD_ASYNC: "1"}),
        ("auto", {}, {OLD: "1"}, False, True, {OLD: None}),
        ("auto", {}, {OLD: "1", OLD_ASYNC: "1"}, False, False, {OLD: None}),
        # Somebody has switched error handling off: blocking wait is the only limit, on every torch.
        ("auto", {}, {OLD: "1", OLD_ASYNC: "0"}, False, False, {}),
        ("auto", {}, {NEW: "1", NEW_ASYNC: "0"}, True, True, {}),
        # The user exported it.
        ("auto", {NEW: "1"}, {NEW: "1"}, True, True, {}),
        ("auto", {OLD: "1"}, {OLD: "1"}, False, False, {}),
        # The user exported one spelling, the framework set the other: the user's wish holds.
        ("auto", {OLD: "1"}, {OLD: "1", NEW: "1"}, True, True, {NEW: None}),
        ("auto", {OLD: "1"}, {OLD: "1", NEW: "1"}, False, False, {NEW: None}),
        # Off as it is.
        ("auto", {}, {}, True, True, {}),
        ("auto", {}, {NEW: "0"}, True, True, {}),
        # Forced off, also where it was exported.
        ("0", {NEW: "1"}, {NEW: "1"}, True, True, {NEW: None}),
        ("0", {OLD: "1"}, {OLD: "1"}, False, False, {OLD: None, OLD_ASYNC: "1"}),
        ("0", {}, {}, False, False, {}),
        # Forced on, in the one spelling that this torch reads.
        ("1", {}, {}, True, True, {NEW: "1"}),
        ("1", {}, {}, False, False, {OLD: "1"}),
        ("1", {}, {OLD: "1"}, True, True, {NEW: "1", OLD: None}),
        ("1", {}, {NEW: "1"}, True, True, {}),
    ],
)
def test_blocking_wait(setting, at_start, now, new_torch, handled, changes):
    assert blocking_wait.decide(setting, at_start, now, new_torch, handled) == changes


@pytest.mark.parametrize(
    "backend, given, bound, current, count, local_rank, passed",
    [
        ("nccl", None, False, 0, 4, 2, [2]),  # nobody has set the device
        ("nccl", None, False, 3, 4, 2, [3]),  # somebody has: he knows why
        ("nccl", None, False, 0, 4, 0, [0]),
        ("nccl", None, False, 0, 1, 2, [0]),  # each task sees its one GPU only
        ("nccl", None, False, 0, 4, None, [0]),  # no launcher
        ("nccl", None, True, 0, 4, 2, None),  # device_id of init_process_group: torch knows better
        ("nccl", [1], False, 0, 4, 2, [1]),
        ("nccl", [1], True, 0, 4, 2, [1]),
        ("gloo", [1], False, 0, 4, 2, None),  # refused by torch before 2.1
        ("gloo", None, False, 0, 4, 2, None),
        ("mpi", [1], False, 0, 0, 2, None),
        ("cpu:gloo,cuda:nccl", [1], False, 0, 4, 2, [1]),
        ("cpu:gloo,cuda:nccl", None, False, 0, 4, 2, None),
        ("hccl", [1], False, 0, 0, 2, [1]),
    ],
)
def test_the_device_of_a_barrier(backend, given, bound, current, count, local_rank, passed):
    assert barrier_device_ids.decide(backend, given, bound, current, count, local_rank) == passed


@pytest.mark.parametrize(
    "refused, decided, notices, come, notice_seconds, own_failure, step",
    [
        (0, 0, 0, 1, 0, False, "wait"),
        (0, 0, 0, 2, 0, False, "go"),
        (0, 0, 1, 1, 1.0, False, "wait"),  # the leader may catch its exception and try again
        (0, 0, 1, 1, 2.0, False, "fail"),
        (0, 1, 1, 1, 0, False, "go"),  # to the verdict
        (1, 1, 0, 1, 0, False, "go"),  # who gives up writes the verdict first and refuses then
        (1, 0, 0, 1, 0, False, "leave"),
        (1, 0, 0, 2, 0, False, "leave"),
        (0, 1, 0, 2, 0, True, "leave"),  # its own failure, and the others have raised
    ],
)
def test_the_next_step_of_a_wait_of_two_ranks(
    refused, decided, notices, come, notice_seconds, own_failure, step
):
    seen = waiting._Seen(refused=refused, decided=decided, notices=notices, come=come)
    assert waiting.next_step(seen, 2, notice_seconds, own_failure) == step


@pytest.mark.parametrize(
    "seconds, leading, outcome",
    [
        (14, False, None),
        (16, False, "leave"),  # not in a block: what the group's own limit would have given it
        (16, True, None),  # a living leader at work
        (86399, True, None),
        (86401, True, "slow"),
        (86401, False, "leave"),
    ],
)
def test_how_long_a_rank_that_is_missing_is_waited_for(seconds, leading, outcome):
    assert waiting.patience_is_over(seconds, leading, own_limit=15, longest=86400) == outcome


def test_long_waits_print_at_1_2_5_10_and_then_every_30_minutes():
    assert [progress.minute_of_line(number) for number in range(7)] == [1, 2, 5, 10, 40, 70, 100]
    lines = progress.Lines()
    assert [minute for minute in range(101) if lines.is_due(60 * minute)] == [1, 2, 5, 10, 40, 70, 100]


def test_lines_that_nobody_could_print_are_not_made_up_for():
    lines = progress.Lines()
    assert [lines.is_due(60 * minute) for minute in (6, 7, 9, 10, 11)] == [True, False, False, True, False]


@pytest.mark.parametrize(
    "init_method, environ, address",
    [
        (None, {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}, ("node1", 29500)),
        ("env://", {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}, ("node1", 29500)),
        ("tcp://node2:1234", {}, ("node2", 1234)),
        ("tcp://[::1]:1234?rank=0", {}, ("::1", 1234)),
        ("file:///tmp/x", {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}, None),
        (None, {"MASTER_ADDR": "node1"}, None),
        (None, {}, None),
    ],
)
def test_the_address_of_the_store(init_method, environ, address):
    assert meeting.address_of(init_method, None, environ) == address


def test_the_address_of_a_store_that_the_caller_made():
    class Server:
        host, port = "node3", 99

    class Prefix:
        underlying_store = Server()

    class File:
        pass

    assert meeting.address_of(None, Server(), {}) == ("node3", 99)
    assert meeting.address_of(None, Prefix(), {}) == ("node3", 99)
    assert meeting.address_of(None, File(), {"MASTER_ADDR": "a", "MASTER_PORT": "1"}) is None


def record(rank, **changes):
    rows = [{"id": "a.patch", "state": "applied"}, {"id": "b.patch", "state": "waiting"}]
    rows.append({"id": "c.patch", "state": "skipped"})
    base = {
        "rank": rank, "local_rank": rank, "host": "host%d" % rank, "node": "n", "pid": 100 + rank,
        "started": "1", "protocol": 1, "settings": {"timeout": 7200.0}, "settings_hash": "h",
        "packages": {"torch": "2.13.0"}, "patches": rows, "device": "",
        "limits": {"groups": [], "changes": []},
    }  # fmt: skip
    return {**base, **changes}


@pytest.mark.parametrize(
    "second, patch_id, phrase",
    [
        (record(1), "a.patch", None),
        (record(1), "b.patch", None),  # it will be applied once its target is imported
        (record(1), "c.patch", "c.patch not applied on ranks 0-1"),
        (None, "a.patch", "rank 1 is without ddp_patches"),
        (record(1, protocol=2), "a.patch", "rank 0 (host0) has protocol 1, rank 1 (host1) has 2"),
        (
            record(1, settings_hash="i", settings={"timeout": 60.0}),
            "a.patch",
            "the settings differ between rank 0 (host0) and rank 1 (host1): timeout 7200.0 and 60.0",
        ),
        (
            record(1, patches=[{"id": "a.patch", "state": "failed"}]),
            "a.patch",
            "a.patch not applied on rank 1",
        ),
    ],
)
def test_why_ranks_cannot_act_together(second, patch_id, phrase):
    found = {0: record(0)} if second is None else {0: record(0), 1: second}
    assert records.disagreement(found, 2, patch_id) == phrase


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "{" * 100000,
        "[" * 100000,
        json.dumps(record(1))[:-2],  # cut at the size that we are willing to read
        json.dumps(record(2)),
        json.dumps(record(1, pid="1; rm")),
        json.dumps(record(1, host="x" * 10000)),
        json.dumps(record(1, patches=[1])),
        json.dumps(record(1, patches=[{"id": "a.patch"}])),
        json.dumps(record(1, patches=[{"id": 1, "state": "applied"}])),
        json.dumps({name: value for name, value in record(1).items() if name != "node"}),
    ],
    ids=lambda text: text[:12] + str(len(text)),
)
def test_what_is_no_record_of_that_rank_is_ignored(text):
    assert records.load(text, 1) is None


def test_a_record_survives_the_way_through_the_store():
    assert records.load(records.dump(record(1)), 1) == record(1)


@pytest.mark.parametrize(
    "ranks, phrase",
    [([3], "rank 3"), ([3, 1, 2], "ranks 1-3"), ([1, 2, 3, 7], "ranks 1-3, 7"), ([0, 2], "ranks 0, 2")],
)
def test_ranks_in_words(ranks, phrase):
    assert records.ranks_phrase(ranks) == phrase


def test_ranks_on_one_device_are_named():
    found = {
        0: record(0, host="a", device="cuda:0"),
        1: record(1, host="a", device="cuda:0"),
        2: record(2, host="b", node="m", device="cuda:0"),
        3: record(3, host="a", device=""),
    }
    assert records.shared_devices(found) == ["ranks 0-1 of a share cuda:0; NCCL hangs or fails on that"]


def test_the_start_line_names_the_ranks_without_us_and_what_failed():
    found = {0: record(0), 1: record(1, patches=[{"id": "a.patch", "state": "failed"}])}
    line = start_line.text(found, 3, "20260101-000000-abcdef", "/somewhere")
    assert "is on for 2 of 3 ranks (not rank 2) on host0, host1;" in line
    assert "torch 2.13.0" in line
    assert "0 patches applied, 1 failed (a.patch)" in line
    assert "details: ddp-patches status --run 20260101-000000-abcdef" in line
    assert "off: DDP_PATCHES=0" in line


def test_a_run_is_named_after_its_launcher():
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "2", "SLURM_JOB_ID": "5"}
    assert identity.run_id(torchrun) == "x.2"
    slurm = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "1", "SLURM_RESTART_COUNT": "3"}
    assert identity.run_id(slurm) == "slurm-5.1.3"
    assert identity.run_id({}) == "local"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_process_is_dead_when_its_pid_is_free_a_zombie_or_another_ones():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        started = identity.start_time(child.pid)
        assert started and not identity.has_died(child.pid, started)
        assert identity.has_died(child.pid, "1")  # a later process with the same number
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert identity.has_died(child.pid, started)  # nobody has collected it yet
    finally:
        child.kill()
        child.communicate()
    assert identity.has_died(child.pid, started)
