"""For whom the process that hosts the job's store waits after success, and who ends that wait."""

from __future__ import annotations

import threading

import pytest

from ddp_patches import settings
from ddp_patches.runtime import exit_wait
from ddp_patches.runtime.client import ChannelError
from ddp_patches.runtime.stall.post import Post


def sign(idle, cpu=0.0, at=100.0):
    post = Post(1, "n", 7, "elsewhere", "", "at eval.py:3 in evaluate", idle, cpu, {})
    return exit_wait.Sign(1, at, post)


@pytest.mark.parametrize(
    ("given", "now", "reason"),
    [
        (sign(0.5), 103.0, ""),
        (sign(100.0), 103.0, ""),  # an upload: it may stand still for as long as a rank that waits
        (sign(200.0), 103.0, "has not moved for 3m20s, at eval.py:3 in evaluate"),
        (sign(200.0, cpu=0.9), 103.0, ""),  # it computes in one call
        (sign(0.5), 130.0, "gives no sign"),
        (exit_wait.Sign(0, 100.0, None), 110.0, ""),  # it may not have heard of the wait yet
        (exit_wait.Sign(0, 100.0, None), 125.0, "gives no sign"),
    ],
)
def test_who_is_waited_for(given, now, reason):
    assert exit_wait.why_not(given, now, 180.0) == reason


class Channel:
    def __init__(self, client):
        self.client = client

    def call(self, task, seconds):
        return task(self.client)


class Client:
    """A store; `posts` are what the other rank says next."""

    def __init__(self):
        self.counters = {}

    def add(self, key, amount):
        self.counters[key] = self.counters.get(key, 0) + amount
        return self.counters[key]

    def take(self, key):
        return ""


class Job:
    """Rank 0 of two, the other of which is on another machine."""

    rank, world_size, record = 0, 2, {"node": "a"}

    def __init__(self, client):
        self.channel = Channel(client)

    def collect(self, client):
        pass

    def peers(self):
        return {rank: {"node": node, "host": node, "pid": 7, "started": 1} for rank, node in enumerate("ab")}


def wait(client, hurry=None):
    exit_wait.ExitWait(Job(client)).until_nobody_works(hurry or threading.Event())


def test_it_ends_at_once_when_all_have_left(capsys):
    client = Client()
    client.add("stall/left", 2)
    wait(client)
    assert client.counters["exit/host_waits"] == 1 and client.counters["news"] == 1


@pytest.mark.parametrize("end", ["Ctrl-C", "the store is lost"])
def test_it_can_be_ended(end):
    client, hurry = Client(), threading.Event()
    if end == "Ctrl-C":
        threading.Timer(0.3, hurry.set).start()
    else:

        def add(key, amount, before=client.add):
            if client.counters.get("stall/left") is not None:
                raise ChannelError("lost")
            return before(key, amount)

        client.add = add
    wait(client, hurry)


def test_progress_is_told_after_a_minute_with_the_end_of_the_wait(monkeypatch):
    lines, now = [], [0.0]
    monkeypatch.setattr(exit_wait.console, "say", lines.append)
    monkeypatch.setattr(exit_wait.time, "monotonic", lambda: now[0])
    waiting = exit_wait.ExitWait(Job(Client()))
    for now[0] in (30.0, 59.0, 61.0, 90.0, 125.0, 299.0, 301.0):
        waiting._signs = {1: sign(0.5, at=now[0])}
        assert not waiting._is_over(False)
    assert ["%dm" % minutes in line for minutes, line in zip((1, 2, 5), lines)] == [True] * 3
    assert all("rank 1 (b, pid 7) still works (at eval.py:3 in evaluate)" in line for line in lines)
    now[0] = settings.Settings().exit_wait + 1
    waiting._signs = {1: sign(0.5, at=now[0])}
    assert waiting._is_over(False) and "ends now" in lines[3] and len(lines) == 4
