"""Which device a rank takes, and what is open of where a Slurm step meets: pure decisions, so tables."""

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


def task(changes):
    return {name: value for name, value in {**TASK, **changes}.items() if value is not None}


def test_all_tasks_of_a_step_name_the_same_one():
    assert launch.open_step(TASK, None) == slurm.Step(4711, 0, 0)
    for changes in (
        {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
        {"SLURM_JOB_ID": None, "SLURM_JOBID": "4711"},
    ):
        assert launch.open_step(task(changes), None) == slurm.Step(4711, 0, 0)
    others = [{"SLURM_JOB_ID": "4712"}, {"SLURM_STEP_ID": "1"}, {"SLURM_RESTART_COUNT": "1"}]
    assert len({launch.open_step(task(other), None) for other in [{}, *others]}) == 4


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
    assert launch.open_step(task(changes), port) is None


def test_without_scontrol_the_address_comes_from_slurms_variables():
    nodes = task({"SLURM_NODELIST": "gpu[003-005]"})
    assert launch.address_to_set(nodes, has_scontrol=False) == {"MASTER_ADDR": "gpu003"}
    assert launch.address_to_set(nodes, has_scontrol=True) == {}
    assert launch.address_to_set({**nodes, "MASTER_ADDR": "head"}, has_scontrol=False) == {}
    assert launch.address_to_set(TASK, has_scontrol=False) == {}


def test_the_ports_of_a_step_are_its_own():
    """Its own port, where 29500 is taken, and those on which rank 0 answers: all tasks make the same ones."""
    steps = [slurm.Step(job, step, 0) for job in range(4700, 4720) for step in range(5)]
    ports = [port for step in steps for port in (slurm.port(*step), *slurm.beacon_ports(step))]
    assert len(ports) == len(set(ports)) == 400
    assert min(ports) >= slurm.FIRST_PORT and max(ports) <= slurm.LAST_PORT < 29500
