"""What the stand-ins decide, apart from any framework."""

from __future__ import annotations

import types

import pytest

from ddp_patches.rehearse import gloo, launcher, ultralytics


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("nccl", "gloo"),
        ("NCCL", "gloo"),
        ("hccl", "gloo"),
        ("xccl", "gloo"),
        ("cpu:gloo,cuda:nccl", "gloo"),
        ("cuda:nccl", "gloo"),
        (None, "gloo"),  # NCCL and gloo together, where torch has both
        ("gloo", "gloo"),
        ("mpi", "mpi"),
        ("cpu:gloo", "cpu:gloo"),
        ("fake", "fake"),
    ],
)
def test_backends_that_need_devices_become_gloo(given, used):
    assert gloo.rehearsed_backend(given) == used


@pytest.mark.parametrize(("ranks", "device"), [(2, "0,1"), (3, "0,1,2")])
def test_device_names_one_gpu_for_each_rank(ranks, device):
    assert ultralytics.device_string(ranks) == device


@pytest.mark.parametrize(
    "given", [None, {}, {"device": [3]}, {"device": "cpu"}, types.SimpleNamespace(device=None)]
)
def test_device_of_the_command_is_replaced(given):
    """`device=0`, `device=cpu` and no device at all would each train without launching a rank."""
    assert ultralytics.with_device(given, "0,1") == {"device": "0,1"}


def test_the_callers_own_overrides_are_not_changed():
    overrides = {"device": 0, "epochs": 1}
    assert ultralytics.with_device(overrides, "0,1") == {"device": "0,1", "epochs": 1}
    assert overrides == {"device": 0, "epochs": 1}


TRAIN = ["python", "tools/train.py", "config.py", "--launcher", "pytorch"]


@pytest.mark.parametrize(
    ("command", "before"),
    [
        (TRAIN, 1),
        (["/usr/bin/python3.11", "-W", "ignore", "-u", "train.py", "--launcher=pytorch"], 4),
    ],
)
def test_script_that_waits_for_a_launcher_gets_one(command, before):
    """Alone, `--launcher pytorch` ends in "KeyError: 'RANK'"."""
    completed = launcher.completed(command, {}, 3)
    assert completed[:before] == command[:before]
    assert completed[-len(command) + before :] == command[before:]
    added = completed[before : -len(command) + before]
    assert added[:4] == ["-m", "torch.distributed.run", "--nproc_per_node=3", "--master_addr=127.0.0.1"]


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        (TRAIN, {"RANK": "0"}),  # somebody has started the ranks
        (TRAIN[:-1] + ["slurm"], {}),
        (TRAIN[:-2], {}),
        (["python", "-m", "torch.distributed.run", *TRAIN[1:]], {}),
        (["python", "-mtorch.distributed.run", *TRAIN[1:]], {}),
        (["python", "-c", "pass", "--launcher", "pytorch"], {}),
        (["torchrun", *TRAIN[1:]], {}),
        (["bash", "tools/dist_train.sh", "config.py", "2"], {}),
        (["python"], {}),
    ],
)
def test_other_commands_are_left_as_they_are(command, environ):
    assert launcher.completed(command, environ, 2) == command


@pytest.mark.parametrize(
    ("command", "number"),
    [
        (["torchrun", "--nproc_per_node", "4", "train.py"], 4),
        (["torchrun", "--nproc-per-node=3", "train.py"], 3),
        (["torchrun", "--nproc_per_node=gpu", "train.py"], None),
        (["torchrun", "--nproc_per_node"], None),
        (["python", "train.py"], None),
    ],
)
def test_number_of_processes_is_read_from_the_command(command, number):
    assert launcher.processes_named(command) == number
