"""A call with arguments that no release known has is upstream's alone (promise 1: never a new crash).

An optional parameter more leaves a target `compatible`, and upstream's own callers then use it.
"""

from __future__ import annotations

import contextlib

import pytest

from ddp_patches.engine import catalogue

# One of each replacement that names its parameters, by patch and target; the modules it needs; its arguments.
FIXED = {
    ("ultralytics.zero_first", "torch_distributed_zero_first"): ("", ["rank"]),
    ("mmdet.reduce_mean", "reduce_mean"): ("torch", ["tensor"]),
    ("mmdet.resample", "CustomDataset._rand_another"): ("numpy", ["self", "index"]),
    ("mmdet.resample", "Compose.__call__"): ("", ["self", "data"]),
    ("mmengine.resample", "BaseDataset._rand_another"): ("", ["self"]),
    ("mmengine.collect_results", "collect_results_cpu"): ("", ["part", 2, "folder"]),
}


@pytest.mark.parametrize("patch_id, attribute", FIXED)
@pytest.mark.parametrize("more, named", [(["more"], {}), ([], {"group": "some ranks"})])
def test_a_call_with_another_argument_is_handed_to_upstream(patch_id, attribute, more, named):
    module, arguments = FIXED[patch_id, attribute]
    if module:
        pytest.importorskip(module)
    (patch,) = [each for each in catalogue.load() if each.id == patch_id]
    (build,) = {v.build for v in patch.variants if v.target.attribute == attribute}
    calls = []

    def upstreams(*given, **by_name):
        calls.append((list(given), by_name))
        return contextlib.nullcontext()

    with build(upstreams)(*arguments, *more, **named):
        pass
    assert calls == [(arguments + more, named)]
