"""Which port a Slurm step meets on: what rank 0's word is worth, and what upstream's port tells meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from ddp_patches.runtime import beacon, slurm, step_port
from support import environment, ranks

STEP = slurm.Step(job=4711, step=2, restart=1)
SAID = {"protocol": beacon.PROTOCOL, **STEP._asdict(), "port": 29500}


def test_rank_0_says_the_port_in_a_short_line():
    line = beacon.line(STEP, 29500)
    assert json.loads(line) == SAID
    assert line.endswith(b"\n") and len(line) < beacon.LONGEST_LINE / 2
    assert beacon.port_in(line, STEP) == 29500
    largest = slurm.Step(2**32, 2**32, 2**32)
    assert len(beacon.line(largest, 65535)) < beacon.LONGEST_LINE / 2


@pytest.mark.parametrize(
    "said",
    [
        {**SAID, "job": 4712},
        {**SAID, "step": 0},
        {**SAID, "restart": 0},
        {**SAID, "protocol": beacon.PROTOCOL + 1},
        {**SAID, "port": 80},
        {**SAID, "port": 65536},
        {**SAID, "port": "29500"},
        {**SAID, "port": True},
        {**SAID, "port": 29500.0},
        {**SAID, "more": 1},
        {name: value for name, value in SAID.items() if name != "port"},
        {name: value for name, value in SAID.items() if name != "job"},
        [SAID],
        29500,
        None,
    ],
)
def test_another_jobs_word_and_what_is_no_word_are_refused(said):
    assert beacon.port_in(json.dumps(said).encode() + b"\n", STEP) is None


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\xff\xfe\x00\n",
        b"[" * 200 + b"\n",
        json.dumps(SAID).encode(),  # cut off
        json.dumps(SAID).encode() + b" " * beacon.LONGEST_LINE + b"\n",
        json.dumps(SAID).encode() + b"\n" + json.dumps(SAID).encode() + b"\n",
        json.dumps({**SAID, "port": 10**90}).encode() + b"\n",
    ],
)
def test_junk_is_refused(said):
    """Promise 10: nothing but JSON of bounded size is read."""
    assert beacon.port_in(said, STEP) is None


@contextlib.contextmanager
def service(behave):
    """A listening port; `behave(connection)` for each who connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def serve():
            while not over.is_set():
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    behave(connection, over)

        thread = threading.Thread(target=serve)
        thread.start()
        address = listener.getsockname()
        yield address
        over.set()
        socket.create_connection(address).close()
        thread.join()


def endless(connection, over):
    while not over.is_set():
        connection.sendall(b"x" * 65536)


def drops(connection, over):
    while not over.wait(0.05):
        connection.sendall(b"{")


SERVICES = {
    "silent": lambda connection, over: over.wait(),
    "drops": drops,
    "endless": endless,
    "hangs_up": lambda connection, over: None,
    "junk": lambda connection, over: connection.sendall(b"220 smtp.example.org ESMTP\r\n"),
    "another_job": lambda connection, over: connection.sendall(beacon.line(STEP._replace(job=1), 29500)),
}


@pytest.mark.parametrize("name", SERVICES)
def test_a_strangers_service_is_no_beacon_and_holds_nobody_up(name):
    with service(SERVICES[name]) as address:
        assert beacon.ask(address, STEP) is None


def test_nobody_listens():
    with service(SERVICES["silent"]) as address:
        pass
    assert beacon.ask(address, STEP) is None
    assert beacon.ask(("no-such-host.invalid", 1), STEP) is None


def test_the_beacon_takes_the_first_free_port_and_lets_go_of_it():
    taken = ranks.free_port()
    with socket.create_server(("127.0.0.1", taken)):
        free = ranks.free_port()
        lit = beacon.Beacon([taken, free], beacon.line(STEP, 29500))
        try:
            assert beacon.ask(("127.0.0.1", free), STEP) == 29500
            with socket.create_connection(("127.0.0.1", free)):  # says nothing, and leaves
                pass
            assert beacon.ask(("127.0.0.1", free), STEP) == 29500
            assert beacon.ask(("127.0.0.1", free), STEP._replace(restart=0)) is None
            with pytest.raises(OSError):
                beacon.Beacon([taken, free], b"")
        finally:
            lit.stop()
            lit.stop()
    assert "ddp_patches beacon" not in [thread.name for thread in threading.enumerate()]
    socket.create_server(("127.0.0.1", free)).close()


ENDS = """
import sys, threading
from ddp_patches.runtime import beacon
lit = beacon.Beacon([int(sys.argv[1])], b"")
ended = lit._thread.join
def join(*arguments):
    ended(*arguments)
    print("alive" if lit._thread.is_alive() else "joined", flush=True)
lit._thread.join = join
"""


def test_the_beacon_has_ended_before_the_interpreter(tmp_path):
    """A rank 0 that raises out of `init_dist` in a way that we do not see."""
    command = [sys.executable, "-c", ENDS, str(ranks.free_port())]
    environ = environment.clean(tmp_path)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["joined"] and not done.stderr


# Their ports are this process's own: tests run side by side.
MINE, OTHERS = slurm.Step(os.getpid(), 0, 0), slurm.Step(os.getpid(), 1, 0)


@pytest.fixture
def upstreams_port(monkeypatch):
    """Another one than 29500, which belongs to the whole machine."""
    monkeypatch.setattr(step_port, "UPSTREAMS_PORT", ranks.free_port())
    return step_port.UPSTREAMS_PORT


@pytest.fixture
def places():
    """Rank 0's choices, let go of at the end."""
    with contextlib.ExitStack() as stack:

        def choose(step):
            place = step_port.Place(step)
            stack.callback(place.let_go)
            return place

        yield choose


def heard(step):
    """What the other ranks of the step are told."""
    told = [beacon.ask(("127.0.0.1", port), step) for port in slurm.beacon_ports(step)]
    return [port for port in told if port is not None]


def test_rank_0_takes_upstreams_port_where_it_is_free(places, upstreams_port):
    place = places(MINE)
    assert place.port == upstreams_port and heard(MINE) == [upstreams_port]
    place.let_go()
    assert heard(MINE) == []


def test_rank_0_takes_another_port_where_upstreams_is_taken(places, upstreams_port):
    with socket.create_server(("127.0.0.1", upstreams_port)):
        place = places(MINE)
    assert place.port != upstreams_port and heard(MINE) == [place.port]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing keeps them apart")
def test_two_jobs_that_look_at_the_same_moment_do_not_choose_the_same_port(places, upstreams_port):
    """Nobody listens on upstream's port until the first one's store does."""
    first, second = places(MINE), places(OTHERS)
    assert first.port == upstreams_port != second.port
    assert heard(MINE) == [first.port] and heard(OTHERS) == [second.port]
    for place in (first, second):
        place.let_go()
    assert places(OTHERS).port == upstreams_port


def looks(*seen):
    """Sightings after looks a second apart: `.` refused, `+` accepted. And the time of the last one."""
    sightings = step_port.Sightings()
    text = "".join(seen)
    for second, look in enumerate(text):
        sightings.note(second, look == "+")
    return sightings, len(text) - 1


@pytest.mark.parametrize(
    "seen, is_due",
    [
        ("", False),
        ("." * 1000, False),  # rank 0 has not come
        ("." + "+" * 10, False),
        ("." + "+" * 11, True),  # came while we waited
        ("+" * 29, False),  # was there before us: may be another job's
        ("+" * 31, True),
        ("+" * 20 + "." + "+" * 10, False),  # in a row
        ("+" * 20 + "." + "+" * 11, True),
        ("." + "+." * 50, False),
    ],
)
def test_upstreams_port_is_taken_when_it_has_accepted_for_a_while(seen, is_due):
    sightings, now = looks(seen)
    assert sightings.is_due(now) is is_due


def test_another_jobs_store_is_never_taken_as_long_as_it_is_there():
    sightings, now = looks("." + "+" * 11)
    assert not sightings.judge(now, "slurm-1.0.0", "slurm-4711.2.1")
    for _ in range(600):
        now += 1
        sightings.note(now, True)
        assert not sightings.is_due(now)
    # It has gone; what comes after it may be rank 0's.
    for accepted in [False] + [True] * 11:
        now += 1
        sightings.note(now, accepted)
    assert sightings.is_due(now)


@pytest.mark.parametrize("written", ["", "slurm-4711.2.1"])
def test_a_store_that_is_not_another_jobs_is_taken(written):
    """Nobody there has us, or another rank of this job was there first."""
    sightings, now = looks("." + "+" * 11)
    assert sightings.judge(now, written, "slurm-4711.2.1")


def test_a_service_that_is_no_store_is_asked_more_and_more_seldom():
    sightings, now = looks("." + "+" * 11)
    for seconds in (20, 40, 80):
        assert not sightings.judge(now, None, "slurm-4711.2.1")
        assert not sightings.is_due(now + seconds - 1)
        now += seconds
        assert sightings.is_due(now) and not sightings.is_anothers
    # Rank 0's store in its place.
    sightings.note(now, False)
    sightings.note(now + 1, True)
    assert sightings.is_due(now + 11)


@pytest.mark.parametrize(
    "rank, local_rank, said",
    [("1", "1", True), ("2", "2", False), ("4", "0", True), ("5", "1", False)],
)
def test_one_rank_of_a_node_says_what_it_waits_for(rank, local_rank, said):
    assert step_port.speaks({"SLURM_PROCID": rank, "SLURM_LOCALID": local_rank}) is said
