"""``init_dist`` of real mmengine and mmcv: limits, devices, and two gloo ranks behind each launcher.

This machine has no GPU, so what would touch one is a recorder.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys

import pytest

from ddp_patches.runtime import slurm
from support import environment, layers, ranks

# mmengine 0.10.7, 0.7.4 and 0.1.0, mmcv 1.7.2 and 1.3.8.
RELEASES = ["mmdet/3.3.0", "mmdet/3.0.0", "mmengine/0.1.0", "mmdet/2.28.2", "mmdet/2.14.0"]
DEFAULT_PORT = 29500  # upstream's

BEGINNING = """
    import datetime, json, os, sys, warnings
    warnings.simplefilter("ignore")
    import ddp_patches.auto
    import torch, torch.distributed as dist

    selected = []
    torch.cuda.set_device = selected.append
    torch.cuda.device_count = lambda: int(os.environ["SEEN_DEVICES"])
    try:
        from mmengine.dist import init_dist
    except ImportError:
        from mmcv.runner import init_dist
    """


@pytest.fixture
def start(processes):
    """Start one process with a launcher's variables."""
    (processes.folder / "scontrol").write_text("#!/bin/sh\necho 127.0.0.1\n")
    (processes.folder / "scontrol").chmod(0o755)
    path = os.pathsep.join([str(processes.folder), os.environ["PATH"]])

    def started(release, program, name, variables, patched=True, arguments=()):
        environ = started.environment(release, {"DDP_PATCHES": str(int(patched)), **variables})
        script = ranks.script(processes.folder, BEGINNING + program)
        return processes.start([sys.executable, script, *arguments], environ, name)

    def of(release, variables):
        variables = {"PATH": path, "SEEN_DEVICES": "2", **variables}
        return environment.clean(processes.folder, environment.CPU_VISION, layers.layer(release), **variables)

    started.environment = of
    return started


def task(rank, job, **variables):
    """Task `rank` of `srun` with two tasks on one node."""
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NTASKS": "2",
        "SLURM_NODELIST": "gpu003",
        **variables,
    }


EACH = """
    class Made(Exception):
        "In the place of a process group."

    def made(backend, timeout=None, **keywords):
        if not isinstance(timeout, (datetime.timedelta, type(None))):
            raise TypeError("as torch's")
        raise Made(timeout)

    dist.init_process_group = made

    def call(launcher, timeout, variables):
        os.environ.update(variables)
        del selected[:]
        options = {} if timeout is None else {"timeout": eval(timeout)}
        try:
            init_dist(launcher, backend="gloo", **options)
        except Made as group:
            limit = group.args[0] and group.args[0] / datetime.timedelta(seconds=1)
            return [limit, selected[-1], os.environ.get("LOCAL_RANK")]
        except Exception as error:
            return [type(error).__name__, str(error)]

    print(json.dumps({"results": [call(*case) for case in json.loads(sys.argv[1])]}))
    """

SLURM = task(1, 4711, MASTER_ADDR="127.0.0.1", MASTER_PORT="29501")  # or it would wait for rank 0
TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
MPI = {
    f"OMPI_COMM_WORLD_{name}": value for name, value in (("RANK", "1"), ("SIZE", "2"), ("LOCAL_RANK", "1"))
}
LIMITS = {"5400": 5400, "5400.5": 5400.5, "'90m'": 5400, "datetime.timedelta(hours=3)": 10800}
LAUNCHERS = {"pytorch": TORCHRUN, "slurm": SLURM, "mpi": {**MPI, "LOCAL_RANK": "0"}}


@pytest.mark.parametrize("release", RELEASES)
def test_a_limit_in_every_form_and_the_device_of_the_local_rank(start, release):
    """Entry 9 of the field reports: which form is taken changes from release to release."""
    cases = [[launcher, limit, v] for launcher, v in LAUNCHERS.items() for limit in [None, *LIMITS]]
    # The second node of a job with three ranks on the first and one here, and a task's only GPU.
    uneven = ["slurm", None, {"SLURM_PROCID": "3", "SLURM_LOCALID": "0"}]
    single = ["slurm", None, {"SEEN_DEVICES": "1", "SLURM_PROCID": "3", "SLURM_LOCALID": "3"}]
    bad = ["pytorch", "'soon'", TORCHRUN]
    started = [
        start(release, EACH, name, {}, name == "ours", [json.dumps([*cases, uneven, single, bad])])
        for name in ("ours", "upstream")
    ]
    ours, upstreams = (process.wait(120).check().answer["results"] for process in started)
    # The limit, the device, and the variable from which the runner takes the device of DDP.
    for (_, limit, _), result in zip(cases, ours):
        assert result == [LIMITS.get(limit), 1, "1"]
    refused = {(launcher, limit) for (launcher, limit, _), r in zip(cases, upstreams) if r[0] == "TypeError"}
    assert {launcher for launcher, _ in refused} == set(LAUNCHERS)
    assert None not in {limit for _, limit in refused}
    assert ours[len(cases)] == [None, 0, "0"]
    assert ours[len(cases) + 1] == [None, 0, "0"]
    assert upstreams[len(cases) : -1] != ours[len(cases) : -1]
    # What nobody understands is upstream's to refuse.
    assert ours[-1] == upstreams[-1]
    assert ours[-1][0] == "TypeError"


MEET = """
    def limits():
        "Seconds for the meeting and for collectives."
        if "ddp_patches.runtime.limits" not in sys.modules:
            return None
        group = sys.modules["ddp_patches.runtime.limits"].snapshot()["groups"][0]
        return [group["join_timeout"], group["timeout"]]

    for launcher, options, variables in json.loads(sys.argv[1]):
        os.environ.update(variables)
        del selected[:]
        print("calling", flush=True)
        init_dist(launcher, backend="gloo", **options)
        total = torch.ones(1)
        dist.all_reduce(total)
        try:
            init_dist(launcher, backend="gloo")
            again = None
        except Exception as error:
            again = type(error).__name__
        print(json.dumps({
            "total": total.item(), "port": os.environ["MASTER_PORT"], "again": again, "rank": dist.get_rank(),
            "device": selected[0], "local_rank": os.environ["LOCAL_RANK"], "limits": limits(),
        }), flush=True)
        dist.destroy_process_group()
    """


LIMIT = {"timeout": "20m"}


@pytest.mark.parametrize("release", RELEASES)
def test_torchrun_and_mpirun(start, release):
    """Two ranks meet behind the variables of each launcher; a second call fails as upstream's does."""
    ports = [str(ranks.free_port()), str(ranks.free_port())]
    running = []
    for rank in range(2):
        mpi = {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "LOCAL_RANK": "0",  # as upstream's train.py leaves it
            "MASTER_PORT": ports[1],
        }
        torchrun = ranks.variables(rank, 2, int(ports[0]))
        calls = [["pytorch", LIMIT, torchrun], ["mpi", LIMIT, mpi]]
        running.append(start(release, MEET, f"rank{rank}", {}, arguments=[json.dumps(calls)]))
    for rank, process in enumerate(running):
        answers = process.wait(120).check().answers
        assert len(answers) == 2
        for answer, port in zip(answers, ports):
            assert answer["total"] == 2.0
            assert (answer["rank"], answer["device"], answer["local_rank"]) == (rank, rank, str(rank))
            assert answer["port"] == port
            assert answer["limits"] == [1200, 7200]  # the caller's, and the setting timeout
            assert answer["again"] in ("RuntimeError", "ValueError")


@pytest.fixture
def default_port():
    """Port 29500 for this test alone, among those of this run."""
    with open(__file__) as file:  # something that all workers of the run have in common
        fcntl.flock(file, fcntl.LOCK_EX)
        yield DEFAULT_PORT


def job_with_a_free_port():
    """The number of a job whose port nobody has."""
    for job in range(os.getpid(), os.getpid() + 1000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", slurm.port(job, 0, 0))) != 0:
                return job
    raise AssertionError("no free port")


@pytest.mark.upstream_fault("mmengine.init_dist")
@pytest.mark.parametrize("release", RELEASES)
def test_tasks_of_srun_meet_where_the_default_port_is_taken(start, release, default_port):
    """Upstream: mmcv's ranks go to ports of their own, mmengine's first one fails and the other waits."""
    job = job_with_a_free_port()
    with socket.socket(socket.AF_INET6) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after the test before this one
        try:
            other.bind(("::", default_port))
            other.listen(20)
        except OSError:
            pass  # somebody else has it: just as well
        upstreams, running = (
            [
                start(release, MEET, f"{name}{rank}", task(rank, job), patched, [json.dumps(call)])
                for rank in (0, 1)
            ]
            for name, patched, call in (
                ("upstream", False, [["slurm", {}, {}]]),
                ("rank", True, [["slurm", LIMIT, {}]]),
            )
        )
        answers = [process.wait(100).check().answer for process in running]
        for process in upstreams:
            process.wait_for("calling", 60)
        results = [process.wait(8) for process in upstreams]
    assert {answer["total"] for answer in answers} == {2.0}
    (port,) = {answer["port"] for answer in answers}
    assert port != str(default_port)
    assert [answer["device"] for answer in answers] == [0, 1]
    assert not any(result.answers for result in results)
    assert any(result.timed_out for result in results), results


DOORS = {
    "run": (["run", "--"], "slurm"),
    "from_slurm": (["run", "--from-slurm", "--"], "pytorch"),
}


@pytest.mark.release(name=RELEASES[0])
def test_srun_with_the_command_before_python(start, processes, default_port):
    """`srun ddp-patches run -- python train.py`: no launcher, and a program that does not import us."""
    job = job_with_a_free_port()
    for door, (command, launcher) in DOORS.items():
        program = (BEGINNING + MEET).replace("import ddp_patches.auto", "")
        path = ranks.script(processes.folder, program, door + ".py")
        running = []
        for rank in range(2):
            environ = start.environment(RELEASES[0], task(rank, job, SLURM_STEP_NUM_NODES="1"))
            calls = json.dumps([[launcher, LIMIT, {}]])
            run = [sys.executable, "-m", "ddp_patches", *command, sys.executable, path, calls]
            running.append(processes.start(run, environ, door + str(rank)))
        results = [process.wait(100).check() for process in running]
        assert [result.answer["total"] for result in results] == [2.0, 2.0]
        (port,) = {int(result.answer["port"]) for result in results}
        # Where --from-slurm has chosen the port, nothing is left to choose.
        assert door == "run" or port == slurm.port(job, 0, 0)
        said = "tasks of this Slurm step meet on port" in results[0].stderr
        assert said == (door == "run" and port != default_port)  # which somebody else may have
        assert "tasks of this Slurm step" not in results[1].stderr
