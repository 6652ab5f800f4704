"""A call with arguments that no release known has is upstream's alone (promise 1: never a new crash).

An optional parameter more leaves a target `compatible`, and upstream's own callers then use it. No framework
is needed for that, but torch and numpy are.
"""

from __future__ import annotations

import contextlib

import pytest

from ddp_patches.engine import catalogue

# The arguments of each replacement that names its parameters, by patch and target.
FIXED = {
    ("ultralytics.zero_first", "torch_distributed_zero_first"): ["rank"],
    ("yolov5.zero_first", "torch_distributed_zero_first"): ["rank"],
    ("mmdet.reduce_mean", "reduce_mean"): ["tensor"],
    ("mmdet.resample", "CustomDataset._rand_another"): ["self", "index"],
    ("mmdet.resample", "Compose.__call__"): ["self", "data"],
    ("mmdet3d.resample", "Custom3DDataset._rand_another"): ["self", "index"],
    ("mmdet3d.resample", "Custom3DSegDataset._rand_another"): ["self", "index"],
    ("mmdet3d.resample", "Compose.__call__"): ["self", "data"],
    ("mmengine.resample", "BaseDataset._rand_another"): ["self"],
    ("mmengine.resample", "Compose.__call__"): ["self", "data"],
}
# These bind a call to upstream's signature, and act on those parameters alone that they know.
BOUND = {
    (package + ".collect_results", "collect_results_cpu"): ["part", 2, "folder"]
    for package in ("mmcv", "mmdet", "mmengine")
}

# Whatever they are called with goes on as it came.
HANDED_ON = {
    "torch.first_error",
    "torch.loader_workers",
    "torch.teardown",
    "ultralytics.launch",
    "ultralytics.setup_ddp",
}


def test_every_replacement_that_names_its_parameters_is_here():
    named = {
        (patch.id, variant.target.attribute)
        for patch in catalogue.load()
        for variant in patch.variants
        if not variant.by_name and not patch.id.startswith("rehearse.")
    }
    assert named >= FIXED.keys()
    assert {id for id, _ in named - FIXED.keys()} <= HANDED_ON


@pytest.mark.parametrize("patch_id, attribute", [*FIXED, *BOUND])
@pytest.mark.parametrize("more, named", [(["more"], {}), ([], {"group": "some ranks"})])
def test_a_call_with_another_argument_is_handed_to_upstream(patch_id, attribute, more, named):
    arguments = {**FIXED, **BOUND}[patch_id, attribute]
    (patch,) = [each for each in catalogue.load() if each.id == patch_id]
    calls = []

    def upstreams(*given, **by_name):
        calls.append((list(given), by_name))
        return contextlib.nullcontext()

    builds = {v.build for v in patch.variants if v.target.attribute == attribute}
    for build in builds:
        with build(upstreams)(*arguments, *more, **named):
            pass
    assert calls == [(arguments + more, named)] * len(builds) != []
