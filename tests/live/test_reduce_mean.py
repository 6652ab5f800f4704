"""mmdet's reduce_mean on real mmdet 2.x and 3.x, two gloo ranks: the bits, integers, and who is missing."""

from __future__ import annotations

import builtins
import struct

import pytest

from support import environment, layers, made_up, ranks
from support.processes import Processes

RELEASES = ["mmdet/3.3.0", "mmdet/2.28.2", "mmdet/2.14.0"]

# As StreamPETR's heads have it: by name from the package, and the module is imported before anything else.
PLUGIN = """
try:
    from mmdet.core import reduce_mean
except ImportError:
    from mmdet.utils import reduce_mean

def loss(tensor):
    return reduce_mean(tensor)
"""

VALUES = """
    import json, os, pickle, warnings
    warnings.simplefilter("ignore")
    import ddp_patches.auto
    import torch, torch.distributed as dist
    import plugin_head

    rank = int(os.environ["RANK"])
    before_the_group = torch.ones(2)
    same = plugin_head.loss(before_the_group) is before_the_group
    dist.init_process_group("gloo")
    torch.manual_seed(rank)
    base = torch.randn(6, 5) * 1e4
    cases = {
        "0-d": base[0, 0], "empty": base[:0], "not contiguous": base.t()[1:, ::2],
        "half": base.half(), "bfloat16": base.bfloat16(), "double": base.double() / 3,
        "special": torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1e-40]),
        "needs gradient": base.clone().requires_grad_(),
        "0-d long": torch.tensor(3 + rank), "int": torch.tensor([1, -2, 2**24 + 1]).int(),
        "uint8": torch.tensor([255, rank], dtype=torch.uint8), "bool": torch.tensor([True, rank == 0]),
    }
    def answer():
        results = {}
        for name, tensor in cases.items():
            copy = tensor.detach().clone()
            try:
                mean = plugin_head.loss(tensor)
            except RuntimeError as error:
                results[name] = "raises"
                continue
            flat = mean.detach().contiguous().reshape(-1)
            results[name] = [
                str(mean.dtype), list(mean.shape), mean.requires_grad, list(mean.stride()),
                flat.view(torch.uint8).tolist() if flat.numel() else [],
                mean is not tensor and torch.equal(torch.nan_to_num(copy), torch.nan_to_num(tensor.detach())),
            ]
        compiled = torch.compile(plugin_head.loss, backend="eager")(torch.tensor([1.0 + rank])).item()
        torch._dynamo.reset()
        pickled = str(pickle.dumps(plugin_head.reduce_mean))
        return {"results": results, "same": same, "compiled": compiled, "pickled": pickled}

    ours = answer()
    ddp_patches.disable()
    assert "__ddp_patches__" not in vars(plugin_head.reduce_mean)
    print(json.dumps({"ours": ours, "upstream": answer()}))
    """


def start(folder, release, program, count=2, **variables):
    made_up.write_files(folder, {"plugin_head.py": PLUGIN})
    environ = environment.clean(folder, folder, environment.CPU_VISION, layers.layer(release), **variables)
    return ranks.start(Processes(folder), program, environ, count)


@pytest.mark.upstream_fault("mmdet.reduce_mean")
@pytest.mark.parametrize("release", RELEASES)
def test_floats_have_upstreams_bits_and_integers_a_mean(tmp_path, release):
    """Issue 15 of the field reports: "Float can't be cast to Long" as soon as training is distributed."""
    answers = [rank.check().answer for rank in start(tmp_path, release, VALUES).wait(150)]
    ours = [answer["ours"] for answer in answers]
    for our, upstream in ((answer["ours"], answer["upstream"]) for answer in answers):
        integers = {name for name, result in upstream["results"].items() if result == "raises"}
        assert integers == {"0-d long", "int", "uint8", "bool"}
        for name in set(upstream["results"]) - integers:
            assert our["results"][name] == upstream["results"][name], name
            assert our["results"][name][-1], name
        assert our["pickled"] == upstream["pickled"]
        assert (our["same"], upstream["same"]) == (True, True)
        assert our["compiled"] == upstream["compiled"] == 1.5

    def numbers(name):
        kind, shape, _, _, data, kept = ours[0]["results"][name]
        assert (kind, kept) == ("torch.float32", True)
        assert ours[1]["results"][name][4] == data
        return list(struct.unpack("<%df" % (len(data) // 4), bytes(data))), shape

    assert numbers("0-d long") == ([3.5], [])
    assert numbers("int") == ([1.0, -2.0, 2.0**24], [3])  # a float holds no 2**24 + 1
    assert numbers("uint8") == ([255.0, 0.5], [2])
    assert numbers("bool") == ([1.0, 0.5], [2])


ALONE = """
    import json
    import ddp_patches.auto
    import torch, torch.distributed as dist
    import plugin_head

    dist.init_process_group("gloo")
    counts = []
    all_reduce = dist.all_reduce
    dist.all_reduce = lambda *arguments, **keywords: counts.append(1) or all_reduce(*arguments, **keywords)
    given = torch.tensor([1.0, 2.0])
    whole = plugin_head.loss(torch.tensor(3)).item()
    ours = plugin_head.loss(given)
    without = len(counts)
    ddp_patches.disable()
    upstreams = plugin_head.loss(given)
    print(json.dumps({"collectives": [without, len(counts)], "whole": whole,
                      "means": [each.tolist() for each in (ours, upstreams) if each is not given]}))
    """


@pytest.mark.release(name=RELEASES[0])
def test_a_world_of_one_does_not_communicate(tmp_path):
    """What is counted are calls of torch's all_reduce."""
    answer = start(tmp_path, RELEASES[0], ALONE, 1).wait(100)[0].check().answer
    assert answer == {"collectives": [0, 1], "whole": 3.0, "means": [[1.0, 2.0], [1.0, 2.0]]}


# Rank 2 is where StreamPETR's rank 1 was: alive, and never coming. It ends when both others have failed.
MISSING = """
    import datetime, json, os, sys, time
    import ddp_patches.auto
    import torch, torch.distributed as dist
    import plugin_head

    rank = int(os.environ["RANK"])
    here = os.path.dirname(os.path.abspath(__file__))
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=15))
    plugin_head.loss(torch.ones(1))
    if rank == 2:
        while not all(os.path.exists(os.path.join(here, "failed%d" % other)) for other in (0, 1)):
            time.sleep(0.1)
    else:
        try:
            plugin_head.loss(torch.ones(1))
        except Exception as error:
            print(json.dumps({"type": type(error).__name__, "message": str(error)}), flush=True)
        open(os.path.join(here, "failed%d" % rank), "w").close()
        while not os.path.exists(os.path.join(here, "failed%d" % (1 - rank))):
            time.sleep(0.1)  # rank 0 hosts the store, in which rank 1 may still be looking
    os._exit(0)
    """


@pytest.mark.release(name=RELEASES[0])
def test_a_failure_names_the_call_and_the_rank_that_did_not_come(tmp_path):
    """Entry 14 of the field reports: for upstream it is a connection that timed out, and nothing else."""
    results = start(tmp_path, RELEASES[0], MISSING, 3, DDP_PATCHES_TIMEOUT="keep").wait(120)
    for result in results[:2]:
        answer = result.check().answer
        assert issubclass(getattr(builtins, answer["type"], RuntimeError), RuntimeError)
        upstreams, _, our = answer["message"].partition("\n[ddp_patches] ")
        assert "rank 2" not in upstreams
        assert "/plugin_head.py:8 in loss: " in our
        assert "no sign of the same failure from rank 2 (" in our
        assert "rank 0 (" not in our
        assert "rank 1 (" not in our
