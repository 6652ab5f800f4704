"""For whom the process that hosts the job's store waits after success, and who ends that wait."""

from __future__ import annotations

import multiprocessing
import threading
import time

import pytest

from ddp_patches import settings
from ddp_patches.runtime import exit_wait
from ddp_patches.runtime.client import ChannelError
from ddp_patches.runtime.stall.post import Post

NOT_YET = exit_wait.Peer(0, 100.0, None)


def peer(idle, cpu=0.0, at=100.0, kind="elsewhere", backend="gloo", count=5):
    post = Post(
        1, "n", 7, kind, "", "at eval.py:3 in evaluate", idle, cpu, {"default": count}, backend=backend
    )
    return exit_wait.Peer(1, at, post)


@pytest.mark.parametrize(
    ("given", "now", "reason"),
    [
        (peer(0.5), 103.0, ""),
        (peer(100.0), 103.0, ""),
        (peer(200.0), 103.0, "has not moved for 3m20s, at eval.py:3 in evaluate"),
        (peer(200.0, cpu=0.9), 103.0, ""),  # it computes in one call
        (peer(200.0, cpu=0.1), 103.0, ""),  # an upload
        (peer(5.0, kind="collective"), 103.0, ""),
        (peer(11.0, kind="collective"), 103.0, "waits for others, at eval.py:3 in evaluate"),
        (peer(0.5, backend="nccl"), 103.0, ""),
        (
            peer(0.5, backend="nccl", count=6),
            103.0,
            "is in a collective that this rank has not come to, at eval.py:3 in evaluate",
        ),
        (peer(0.5), 270.0, ""),  # it may hold the interpreter's lock
        (peer(0.5), 300.0, "has given no sign for 3m20s"),
        (NOT_YET, 119.0, ""),  # it may not have heard of the wait
        (NOT_YET, 121.0, "has given no sign"),
    ],
)
def test_who_is_waited_for(given, now, reason):
    assert exit_wait.why_not(given, now, exit_wait.Limits(20.0, 180.0, {"default": 5})) == reason


class Channel:
    def __init__(self, client):
        self.client = client

    def call(self, task, seconds):
        return task(self.client)


class Client:
    """A store in which the other rank gives a sign whenever it is asked for."""

    def __init__(self):
        self.counters = {}

    def add(self, key, amount):
        self.counters[key] = self.counters.get(key, 0) + (amount or "signs" in key)
        return self.counters[key]

    def take(self, key):
        return peer(0.5).post.dump() if "sign" in key else ""


class Job:
    """Rank 0 of two, the other of which is on another machine."""

    rank, world_size, record = 0, 2, {"node": "a"}

    def __init__(self, client):
        self.channel = Channel(client)
        self.began = time.monotonic()

    def collect(self, client):
        return self.peers()

    def peers(self):
        return {rank: {"node": node, "host": node, "pid": 7, "started": 1} for rank, node in enumerate("ab")}


def wait(client, hurry=None):
    exit_wait.ExitWait(Job(client), {}).until_nobody_works(hurry or threading.Event())


def test_it_ends_at_once_when_all_have_left():
    client = Client()
    client.add("stall/left", 2)
    wait(client)
    assert client.counters["exit/host_waits"] == 1 and client.counters["news"] == 1


@pytest.mark.parametrize("end", ["Ctrl-C", "the store is lost"])
def test_it_can_be_ended(monkeypatch, end):
    lines, client, hurry = [], Client(), threading.Event()
    monkeypatch.setattr(exit_wait.console, "say", lines.append)
    monkeypatch.setattr(exit_wait, "_LOOK_SECONDS", 0.01)
    looks = []

    def add(key, amount, before=client.add):
        if key == "stall/left":
            looks.append(key)
            if len(looks) == 20 and end == "Ctrl-C":
                hurry.set()
            elif len(looks) == 20:
                raise ChannelError("lost")
        return before(key, amount)

    client.add = add
    wait(client, hurry)
    assert len(looks) == 20 and not lines


@pytest.mark.parametrize("age", [0.0, 60.0])
def test_a_rank_without_a_record_may_be_about_to_publish_it(monkeypatch, age):
    """As long as the job is young; an older one has ranks without ddp_patches."""
    monkeypatch.setattr(exit_wait, "_LOOK_SECONDS", 0.01)
    job = Job(Client())
    everybody, job.began = job.peers(), time.monotonic() - age
    looks = []

    def collect(client):
        looks.append(len(looks))
        return everybody if len(looks) == 3 else {0: everybody[0]}

    job.collect, job.peers = collect, lambda: {0: everybody[0]}
    monkeypatch.setattr(exit_wait.ExitWait, "_has_reason", lambda self: False)
    exit_wait.ExitWait(job, {}).until_nobody_works(threading.Event())
    assert len(looks) == (3 if age == 0.0 else 2)


def test_progress_is_told_after_a_minute_with_the_end_of_the_wait(monkeypatch):
    lines, now = [], [0.0]
    monkeypatch.setattr(exit_wait.console, "say", lines.append)
    monkeypatch.setattr(exit_wait.time, "monotonic", lambda: now[0])
    waiting = exit_wait.ExitWait(Job(Client()), {})
    for now[0] in (30.0, 59.0, 61.0, 90.0, 125.0, 299.0, 301.0):
        waiting._peers = {1: peer(0.5, at=now[0])}
        assert waiting._has_reason()
    assert ["%dm" % minutes in line for minutes, line in zip((1, 2, 5), lines)] == [True] * 3
    assert all("rank 1 (b, pid 7), at eval.py:3 in evaluate" in line for line in lines)
    now[0] = settings.Settings().exit_wait + 1
    waiting._peers = {1: peer(0.5, at=now[0])}
    assert not waiting._has_reason() and "ends after 30m (setting exit_wait)" in lines[3] and len(lines) == 4


def test_who_ends_with_this_process_is_not_waited_for(monkeypatch):
    """Daemonic children of this process are ended by it, later."""
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,), daemon=True)
    child.start()
    try:
        job = Job(Client())
        monkeypatch.setattr(
            job, "peers", lambda: {1: {"node": "a", "host": "a", "pid": child.pid, "started": 1}}
        )
        assert exit_wait._ends_with_this_process(job) == [1]
    finally:
        child.terminate()
        child.join()
