"""Which device a rank takes and where a Slurm step meets: pure decisions, so tables."""

from __future__ import annotations

import pytest

from ddp_patches.runtime import launch, slurm

TASK = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    "launcher, asked, environ, count, index",
    [
        # Two nodes, two GPUs each; releases that use the global rank ask for what it leaves.
        ("pytorch", 3, {"LOCAL_RANK": "1"}, 2, 1),
        ("pytorch", 1, {"LOCAL_RANK": "1"}, 2, 1),
        # Three ranks on the first node, two on the second: rank 3 is its first one.
        ("pytorch", 1, {"LOCAL_RANK": "0"}, 2, 0),
        ("slurm", 1, {"SLURM_LOCALID": "0"}, 2, 0),
        ("mpi", 1, {"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 2, 1),
        # --gpus-per-task=1, and with two for each task.
        ("slurm", 1, {"SLURM_LOCALID": "1"}, 1, 0),
        ("slurm", 3, {"SLURM_LOCALID": "3", "SLURM_GPUS_PER_TASK": "1", "SLURM_GPUS_ON_NODE": "1"}, 1, 0),
        ("slurm", 3, {"SLURM_LOCALID": "3", "SLURM_TRES_PER_TASK": "cpu=2,gres/gpu=2"}, 2, 1),
        ("slurm", 3, {"SLURM_LOCALID": "3", "SLURM_GPUS_ON_NODE": "8"}, 2, 1),
        ("mpi", 1, {"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 1, 0),
        ("pytorch", 1, {"LOCAL_RANK": "1"}, 1, 0),
        # More ranks than GPUs: two would share one. Upstream's own answer.
        ("pytorch", 1, {"LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"}, 1, 1),
        ("slurm", 1, {"SLURM_LOCALID": "1", "SLURM_GPUS_ON_NODE": "1"}, 1, 1),
        ("pytorch", 3, {"LOCAL_RANK": "3"}, 2, 3),
        # Nothing is known.
        ("slurm", 1, {"LOCAL_RANK": "0"}, 2, 1),
        ("pytorch", 1, {"LOCAL_RANK": "0"}, 0, 1),
        ("pytorch", 1, {"LOCAL_RANK": "-1"}, 2, 1),
        ("none", 1, {"LOCAL_RANK": "0"}, 2, 1),
    ],
)
def test_the_device(launcher, asked, environ, count, index):
    assert launch.device_index(launcher, asked, environ, count) == index


@pytest.mark.parametrize(
    "launcher, environ, count, named",
    [
        ("slurm", {}, 2, True),
        ("mpi", {}, 2, True),
        ("pytorch", {"TORCHELASTIC_RUN_ID": "none"}, 1, False),
        ("pytorch", {"TORCHELASTIC_RUN_ID": "none"}, 2, False),
        ("pytorch", {}, 2, False),
        ("pytorch", {"SLURM_GPUS_PER_TASK": "1"}, 1, True),  # srun ddp-patches run --from-slurm
        ("pytorch", {}, 0, False),
    ],
)
def test_local_rank_becomes_the_devices_index_where_nobody_else_takes_care_of_it(
    launcher, environ, count, named
):
    assert launch.names_device_by_local_rank(launcher, environ, count) is named


def place(changes=None, port=None, has_scontrol=True):
    environ = {name: value for name, value in {**TASK, **(changes or {})}.items() if value is not None}
    return launch.meeting_place(environ, port, has_scontrol)


def test_the_port_is_the_steps_and_all_tasks_find_the_same():
    assert place() == {"MASTER_PORT": str(slurm.port(4711, 0, 0))}
    assert place({"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}) == place()
    assert place({"SLURM_JOB_ID": None, "SLURM_JOBID": "4711"}) == place()
    others = [{"SLURM_JOB_ID": "4712"}, {"SLURM_STEP_ID": "1"}, {"SLURM_RESTART_COUNT": "1"}]
    assert len({place(other)["MASTER_PORT"] for other in [None, *others]}) == 4


@pytest.mark.parametrize(
    "changes, port",
    [
        ({}, 29501),
        ({"MASTER_PORT": "29501"}, None),
        ({"MASTER_PORT": ""}, None),  # is in the environment: upstream's error is its own
        ({"SLURM_JOB_ID": None}, None),  # no job: the variables were set by hand
        ({"SLURM_HET_SIZE": "2"}, None),  # each component has another job number
    ],
)
def test_what_upstream_would_keep_is_kept(changes, port):
    assert place(changes, port) == {}


def test_without_scontrol_the_address_comes_from_slurms_variables():
    nodes = {"SLURM_NODELIST": "gpu[003-005]", "MASTER_PORT": "1234"}
    assert place(nodes, has_scontrol=False) == {"MASTER_ADDR": "gpu003"}
    assert place({**nodes, "MASTER_ADDR": "head"}, has_scontrol=False) == {}
    assert place({"MASTER_PORT": "1234"}, has_scontrol=False) == {}
