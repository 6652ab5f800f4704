"""`run --from-slurm`: from the variables of a task of srun to torch's. A pure decision, so a table.

The variables are those that Slurm's own documentation lists for srun and sbatch.
"""

from __future__ import annotations

import pytest

from ddp_patches.cli import slurm
from ddp_patches.runtime import slurm as variables_of


def task(rank, nodes=2, per_node=2, **variables):
    """The environment of a task of `srun`, block distribution."""
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % per_node),
        "SLURM_NODEID": str(rank // per_node),
        "SLURM_NTASKS": str(nodes * per_node),
        "SLURM_STEP_NUM_TASKS": str(nodes * per_node),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x{nodes})" if nodes > 1 else str(per_node),
        "SLURM_STEP_NODELIST": f"gpu[003-{2 + nodes:03d}]" if nodes > 1 else "gpu003",
        "SLURM_JOB_NODELIST": "gpu[001-009]",
        **variables,
    }


def test_every_task_gets_its_numbers_and_all_the_same_address():
    decisions = [slurm.decide(task(rank)) for rank in range(4)]
    assert [d.variables["RANK"] for d in decisions] == ["0", "1", "2", "3"]
    assert [d.variables["LOCAL_RANK"] for d in decisions] == ["0", "1", "0", "1"]
    assert {d.variables["WORLD_SIZE"] for d in decisions} == {"4"}
    assert {d.variables["LOCAL_WORLD_SIZE"] for d in decisions} == {"2"}
    assert {d.variables["MASTER_ADDR"] for d in decisions} == {"gpu003"}
    assert len({d.variables["MASTER_PORT"] for d in decisions}) == 1
    assert {(d.notes, d.problem) for d in decisions} == {((), "")}


def test_a_step_smaller_than_its_job_counts_its_own_tasks():
    """SLURM_NTASKS may be that of the job's allocation."""
    environ = task(0, nodes=1, SLURM_NTASKS="16", SLURM_NNODES="8", SLURM_TASKS_PER_NODE="2(x8)")
    variables = slurm.decide(environ).variables
    assert variables["WORLD_SIZE"] == variables["LOCAL_WORLD_SIZE"] == "2"


def test_one_node_needs_no_name_resolution():
    assert slurm.decide(task(0, nodes=1)).variables["MASTER_ADDR"] == "127.0.0.1"


def test_uneven_nodes():
    environ = task(3, SLURM_STEP_TASKS_PER_NODE="3,1", SLURM_NODEID="1", SLURM_LOCALID="0")
    assert slurm.decide(environ).variables["LOCAL_WORLD_SIZE"] == "1"


@pytest.mark.parametrize("text", ["", "2", "2(x3),1", "two"])
def test_counts_that_are_not_this_steps_are_not_used(text):
    environ = task(3, SLURM_STEP_TASKS_PER_NODE=text)
    assert "LOCAL_WORLD_SIZE" not in slurm.decide(environ).variables


def test_the_users_address_and_port_are_kept():
    variables = slurm.decide(task(1, MASTER_ADDR="head", MASTER_PORT="1234")).variables
    assert not {"MASTER_ADDR", "MASTER_PORT"} & set(variables)


def test_a_rank_from_the_batch_script_is_corrected_and_said_once():
    """`export RANK=$SLURM_PROCID` in the batch script says 0 in every task: a hang in the joining phase."""
    first, second = (slurm.decide(task(rank, RANK="0", WORLD_SIZE="1")) for rank in (0, 1))
    assert second.variables["RANK"] == "1"
    assert first.notes == ("WORLD_SIZE was 1; Slurm's 4 is used",)
    assert second.notes == ()


def test_a_task_without_a_gpu_of_its_number_says_so_once_per_node():
    """--gpus-per-task: each task sees one GPU, and frameworks ask for number LOCAL_RANK."""
    told = [slurm.decide(task(rank, per_node=4, CUDA_VISIBLE_DEVICES="0")).notes for rank in range(8)]
    assert [rank for rank, notes in enumerate(told) if notes] == [1, 5]
    assert "--gpus-per-node" in told[1][0]
    assert not any(slurm.decide(task(rank, CUDA_VISIBLE_DEVICES="0,1")).notes for rank in range(4))


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"SLURM_JOB_ID": None}, "no Slurm job"),
        ({"SLURM_STEP_ID": None}, "no task of srun"),
        ({"SLURM_STEP_ID": "4294967291"}, "no task of srun"),  # the batch script
        ({"SLURM_STEP_ID": "4294967290"}, "no task of srun"),  # an interactive step
        ({"SLURM_HET_SIZE": "2"}, "heterogeneous"),
        ({"SLURM_PROCID": None}, "SLURM_PROCID=(not set)"),
        ({"SLURM_PROCID": "4"}, "do not fit together"),
        ({"SLURM_LOCALID": "x"}, "SLURM_LOCALID=x"),
        ({"SLURM_STEP_NODELIST": None, "SLURM_JOB_NODELIST": None}, "names no nodes"),
        ({"SLURM_STEP_NODELIST": "gpu[]"}, "no list of hosts"),
    ],
)
def test_what_does_not_fit_sets_nothing_and_says_why(changes, expected):
    environ = {name: value for name, value in {**task(0), **changes}.items() if value is not None}
    decision = slurm.decide(environ)
    assert decision.variables == {}
    assert expected in decision.problem


@pytest.mark.parametrize(
    "hosts, first",
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[003-005,9],login1", "gpu003"),
        ("gpu[7,9]", "gpu7"),
        ("rack[1-2]node[03-04]", "rack1node03"),
        ("gpu[01-02]-ib.cluster.example", "gpu01-ib.cluster.example"),
    ],
)
def test_first_host(hosts, first):
    assert variables_of.first_host(hosts) == first


@pytest.mark.parametrize("hosts", ["", "gpu[01", "gpu[a-b]", "a b", "$(id)", "gpu[]"])
def test_what_is_no_host_list(hosts):
    with pytest.raises(ValueError, match="list of hosts"):
        variables_of.first_host(hosts)


def test_neighbouring_jobs_and_steps_have_different_ports():
    """They share nodes at the same time; a shared port joins two trainings or fails the second one."""
    ports = [variables_of.port(job, step, 0) for job in range(1000, 1100) for step in range(100)]
    assert len(set(ports)) == len(ports)
    assert min(ports) >= variables_of.FIRST_PORT
    assert max(ports) <= variables_of.LAST_PORT
    assert variables_of.port(4711, 0, 1) != variables_of.port(4711, 0, 0)
