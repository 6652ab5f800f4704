"""What the stand-ins decide, apart from any framework."""

from __future__ import annotations

import types

import pytest

from ddp_patches.rehearse import gloo, ultralytics


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
