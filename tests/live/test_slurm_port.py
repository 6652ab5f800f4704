"""On which port the tasks of a Slurm step meet: real mmengine and mmcv, gloo ranks with Slurm's variables.

Guards promise 1: a job in which some ranks have ddp_patches and some have not runs as upstream. Port 29500 is
one for a whole machine, so each job has a network namespace of its own, in which every port is free.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time

import pytest

from ddp_patches.runtime import beacon, slurm, step_port
from support import environment, layers, nodes, ranks
from support.processes import Processes

MMENGINE, MMCV = "mmdet/3.3.0", "mmdet/2.28.2"
RELEASES = [MMENGINE, MMCV]
JOB = slurm.Step(4711, 0, 0)
LIMIT_SECONDS = 100

RANK = """
    import json, os, sys, threading, time, warnings
    warnings.simplefilter("ignore")
    import torch, torch.distributed as dist
    torch.cuda.set_device = lambda device: None
    torch.cuda.device_count = lambda: 2
    try:
        from mmengine.dist import init_dist
    except ImportError:
        from mmcv.runner import init_dist

    print("calling", flush=True)
    time.sleep(float(os.environ.get("LATE", "0")))
    print("called", flush=True)
    options = {"timeout": os.environ["LIMIT"]} if "LIMIT" in os.environ else {}
    init_dist("slurm", backend="gloo", **options)
    total = torch.ones(1)
    dist.all_reduce(total)
    threads = [thread.name for thread in threading.enumerate()]
    print(json.dumps({
        "total": total.item(), "port": int(os.environ["MASTER_PORT"]),
        "beacon": "ddp_patches beacon" in threads,
    }), flush=True)
    dist.destroy_process_group()
    """

# Listens on a port, and says something to each who connects, or nothing.
STRANGER = """
    import socket, sys
    with socket.create_server(("", int(sys.argv[1]))) as listener:
        print("listening", flush=True)
        connections = []
        while True:
            connections.append(listener.accept()[0])
            try:
                connections[-1].sendall(sys.argv[2].encode())
            except OSError:
                pass
    """

# A store at which another job's ranks have met.
OTHER_JOB = """
    import sys, time
    from torch.distributed import TCPStore
    store = TCPStore("127.0.0.1", 29500, 1, True)
    if sys.argv[1]:
        store.set("ddp_patches/run", sys.argv[1])
    print("listening", flush=True)
    time.sleep(600)
    """


class Jobs:
    """Starts jobs, each in a namespace of its own."""

    def __init__(self, folder):
        self._folder = folder
        self._ends = contextlib.ExitStack()

    def start(self, name, release, count=2, inside=None, step=JOB):
        """In the namespace of the job `inside`, where one is named."""
        job = Job(self._folder / name, release, count, step, inside and inside.inside)
        self._ends.callback(job.end)
        return job

    def end(self):
        self._ends.close()


class Job:
    """One job of `count` tasks."""

    def __init__(self, folder, release, count, step, inside):
        folder.mkdir()
        (folder / "scontrol").write_text("#!/bin/sh\necho 127.0.0.1\n")
        (folder / "scontrol").chmod(0o755)
        self.processes, self._release, self._count, self._step = Processes(folder), release, count, step
        self.inside = inside or nodes.Loopback()
        self.tasks = {}

    def _start(self, name, program, arguments=(), **variables):
        path = os.pathsep.join([str(self.processes.folder), os.environ["PATH"]])
        layer = layers.layer(self._release)
        folder = self.processes.folder
        environ = environment.clean(folder, environment.CPU_VISION, layer, PATH=path, **variables)
        script = ranks.script(folder, program, name + ".py")
        command = self.inside.command(sys.executable, script, *arguments)
        return self.processes.start(command, environ, name)

    def task(self, rank, patched=True, **variables):
        """Start a task of `srun`, all of whose tasks are on one node."""
        self.tasks[rank] = self._start(
            "rank%d" % rank,
            ("import ddp_patches.auto\n" if patched else "") + textwrap.dedent(RANK),
            SLURM_JOB_ID=str(self._step.job),
            SLURM_STEP_ID=str(self._step.step),
            SLURM_PROCID=str(rank),
            SLURM_LOCALID=str(rank),
            SLURM_NTASKS=str(self._count),
            SLURM_NODELIST="gpu003",
            **{"DDP_PATCHES": str(int(patched)), **variables},
        )
        return self.tasks[rank]

    def beside(self, name, program, *arguments):
        """Start what else listens on this machine, and wait until it does."""
        running = self._start(name, program, arguments)
        running.wait_for("listening", 60)

    def met(self):
        """The port on which all tasks have met."""
        deadline = time.monotonic() + LIMIT_SECONDS
        results = [task.wait(max(0.0, deadline - time.monotonic())).check() for task in self.tasks.values()]
        assert {result.answer["total"] for result in results} == {float(self._count)}
        assert not any(result.answer["beacon"] for result in results)
        ports = {result.answer["port"] for result in results}
        assert len(ports) == 1
        return ports.pop()

    def lines(self, text):
        return [line for task in self.tasks.values() for line in task.stderr().splitlines() if text in line]

    def end(self):
        self.processes.end()
        self.inside.remove()


@pytest.fixture
def jobs(tmp_path):
    """Skips where namespaces are not permitted."""
    try:
        nodes.Loopback().remove()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip("no network namespaces: %s" % (getattr(error, "stderr", "") or error))
    started = Jobs(tmp_path)
    yield started
    started.end()


WITHOUT = "runs without ddp_patches, it seems"
TAKEN = "port 29500 of this host is taken"


@pytest.mark.release(name=MMENGINE)
def test_a_job_in_which_one_rank_is_without_us_meets(jobs):
    """Either rank 0 or the other one. Both jobs at once: most of it is waiting."""
    with_us_first = jobs.start("rank0-patched", MMENGINE)
    without_us_first = jobs.start("rank0-plain", MMENGINE)
    # Rank 1 of that one first: it has seen port 29500 closed when it opens.
    waiting = without_us_first.task(1)
    for rank, patched in ((0, True), (1, False)):
        with_us_first.task(rank, patched)
    waiting.wait_for("called", 60)
    without_us_first.task(0, patched=False)
    assert with_us_first.met() == 29500
    assert not with_us_first.lines(WITHOUT)
    assert without_us_first.met() == 29500
    assert len(without_us_first.lines(WITHOUT)) == 1


@pytest.mark.matrix
@pytest.mark.release(name=MMCV)
def test_a_rank_of_mmcv_without_us_meets_rank_0(jobs):
    """It looks whether port 29500 is free, as on a host of its own it is: here before rank 0 has come."""
    job = jobs.start("job", MMCV)
    job.task(1, patched=False).wait_for("called", 60)
    time.sleep(2)
    job.task(0)
    assert job.met() == 29500


@pytest.mark.matrix
@pytest.mark.parametrize("release", RELEASES)
def test_all_with_us_meet_on_upstreams_port(jobs, release):
    job = jobs.start("job", release)
    for rank in (0, 1):
        job.task(rank)
    assert job.met() == 29500
    assert not job.lines(WITHOUT) and not job.lines(TAKEN)


@pytest.mark.matrix
@pytest.mark.release(name=MMENGINE)
def test_jobs_that_start_at_once_on_one_node_do_not_share_a_port(jobs):
    """As those of a job array, or two srun of one job."""
    steps = [JOB, JOB._replace(step=1), JOB._replace(job=4712)]
    started = []
    for number, step in enumerate(steps):
        inside = started[0] if started else None
        started.append(jobs.start("job%d" % number, MMENGINE, inside=inside, step=step))
    for job in started:
        for rank in (0, 1):
            job.task(rank)
    ports = [job.met() for job in started]
    assert len(set(ports)) == len(steps) and 29500 in ports
    assert not any(job.lines(WITHOUT) for job in started)


@pytest.mark.matrix
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("run", ["", "slurm-1.0.0"])
def test_another_job_is_on_upstreams_port(jobs, release, run):
    """With us or without; rank 0 comes 20 s after the others, who must not join the other job meanwhile."""
    job = jobs.start("job", release)
    job.beside("other", OTHER_JOB, run)
    job.task(1)
    job.task(0, LATE="20")
    assert job.met() == slurm.port(*JOB)
    assert len(job.lines(TAKEN)) == 1
    assert not job.lines(WITHOUT)


@pytest.mark.matrix
@pytest.mark.release(name=MMENGINE)
def test_a_job_of_ours_that_comes_meanwhile_is_not_joined(jobs):
    """It opens port 29500 while rank 1 waits, and rank 0 comes after the seconds that this is looked at."""
    job = jobs.start("job", MMENGINE)
    job.task(1).wait_for("called", 60)
    job.beside("other", OTHER_JOB, "slurm-1.0.0")
    job.task(0, LATE=str(step_port.CAME_SECONDS + 6))
    assert job.met() == slurm.port(*JOB)
    assert not job.lines(WITHOUT)


@pytest.mark.matrix
@pytest.mark.parametrize("release", RELEASES)
def test_rank_0_comes_late(jobs, release):
    job = jobs.start("job", release)
    job.task(1)
    job.task(0, LATE="20")
    assert job.met() == 29500
    assert not job.lines(WITHOUT)


@pytest.mark.matrix
@pytest.mark.parametrize("release", RELEASES)
def test_rank_0_without_us_came_first(jobs, release):
    """Upstream's port was open before the others came: it may be another job's, and is looked at longer."""
    job = jobs.start("job", release)
    job.task(0, patched=False).wait_for("called", 60)
    time.sleep(2)
    job.task(1)
    assert job.met() == 29500
    assert len(job.lines(WITHOUT)) == 1


@pytest.mark.matrix
@pytest.mark.release(name=MMENGINE)
def test_the_warning_comes_from_one_rank(jobs):
    job = jobs.start("job", MMENGINE, 3)
    for rank in (1, 2):
        job.task(rank)
    job.task(0, patched=False)
    assert job.met() == 29500
    assert len(job.lines(WITHOUT)) == 1


@pytest.mark.matrix
@pytest.mark.release(name=MMENGINE)
@pytest.mark.parametrize("said", ["", "HTTP/1.1 400 Bad Request\r\n\r\n", "a job's"])
@pytest.mark.parametrize("upstreams_is_free", [True, False])
def test_a_stranger_on_the_jobs_ports(jobs, said, upstreams_is_free):
    """On the step's own port and on the first on which rank 0 would answer."""
    said = beacon.line(JOB._replace(job=1), 29500).decode() if said == "a job's" else said
    job = jobs.start("job", MMENGINE)
    job.beside("own", STRANGER, slurm.port(*JOB), said)
    job.beside("first", STRANGER, slurm.beacon_ports(JOB)[0], said)
    if not upstreams_is_free:
        job.beside("upstreams", STRANGER, 29500, said)
    for rank in (0, 1):
        job.task(rank)
    port = job.met()
    assert port == 29500 if upstreams_is_free else port not in (29500, slurm.port(*JOB))
    assert not job.lines(WITHOUT)


@pytest.mark.matrix
@pytest.mark.release(name=MMENGINE)
@pytest.mark.parametrize("said", ["", "x" * 100000])
def test_what_is_no_store_is_not_joined(jobs, said):
    """A stranger on upstream's port, and rank 0 comes after the seconds that this is looked at."""
    job = jobs.start("job", MMENGINE)
    job.task(1).wait_for("called", 60)
    job.beside("upstreams", STRANGER, 29500, said)
    job.task(0, LATE=str(step_port.CAME_SECONDS + 6))
    assert job.met() == slurm.port(*JOB)
    assert not job.lines(WITHOUT)


@pytest.mark.matrix
@pytest.mark.release(name=MMENGINE)
def test_no_port_is_left_to_answer_on(jobs):
    """Rank 0 says so and meets as upstream; the others learn from its store that it is theirs."""
    job = jobs.start("job", MMENGINE)
    for number in slurm.beacon_ports(JOB):
        job.beside("on%d" % number, STRANGER, number, "")
    job.task(1).wait_for("called", 60)
    job.task(0)
    assert job.met() == 29500
    assert len(job.lines("the tasks of this Slurm step meet as without ddp_patches")) == 1
    assert not job.lines(WITHOUT)


@pytest.mark.matrix
@pytest.mark.release(name=MMENGINE)
def test_rank_0_never_comes(jobs):
    """After the limit of the caller this rank does what upstream does: here, it fails."""
    job = jobs.start("job", MMENGINE)
    task = job.task(1, LIMIT="6")
    result = task.wait(LIMIT_SECONDS).check(1)
    assert "has said nothing for 6s" in result.stderr and "goes on as upstream" in result.stderr
    assert not result.answers
