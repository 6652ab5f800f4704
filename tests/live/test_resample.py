"""Another sample for an empty one, on real mmengine and mmdet 2.x data sets."""

from __future__ import annotations

import sys

import pytest

from support import layers, made_up

# What both frameworks' data sets are made of. In a file: a worker that is spawned imports it.
SAMPLES = """
import os, signal
import numpy as np

try:
    from mmengine.dataset import BaseDataset
    NEW = True
except ImportError:
    import mmcv
    from mmdet.datasets.custom import CustomDataset as BaseDataset
    NEW = False

def seen(data):
    data["ours"].append(data["index"])
    return data

class Drop:
    "None but for the good ones, or at random."
    def __init__(self, good=(), rate=None):
        self.good, self.rate = set(good), rate

    def __call__(self, data):
        if self.rate is not None:
            return None if np.random.rand() < self.rate else data
        return data if data["index"] in self.good else None

def crop(data):
    data["crop"] = np.random.randint(1000)
    return data

class Samples(BaseDataset):
    "``length`` samples; sample i is portrait where i is in ``portraits``."
    CLASSES = METAINFO = None if not NEW else {}

    def __init__(self, length, *transforms, portraits=(), **keywords):
        self.length, self.portraits, self.tried = length, portraits, []
        if NEW:
            super().__init__(pipeline=[seen, *transforms], **keywords)
        else:
            super().__init__("none", [seen, *transforms])

    def load_data_list(self):
        return [{"number": i} for i in range(self.length)]

    def load_annotations(self, path):
        heights = [200 if i in self.portraits else 50 for i in range(self.length)]
        return [{"width": 100, "height": height, "ann": {}} for height in heights]

    def prepare_data(self, index):
        return self.pipeline({"index": int(index), "ours": self.tried})

    prepare_train_img = prepare_data

class OwnLoop(Samples):
    def __getitem__(self, index):
        while True:
            data = self.prepare_data(index)
            if data is None:
                index = self._rand_another(index) if not NEW else self._rand_another()
                continue
            return data

class Recursive(Samples):
    def __getitem__(self, index):
        data = self.prepare_data(index)
        return self[self._rand_another(index) if not NEW else self._rand_another()] if data is None else data

class Recovering(Samples):
    "Recursion below __getitem__: one chain."
    def prepare_data(self, index):
        data = super().prepare_data(index)
        if data is None:
            return self.prepare_data(self._rand_another(index) if not NEW else self._rand_another())
        return data

    prepare_train_img = prepare_data

class Forever(Exception):
    pass

def within(seconds, function):
    "Forever if it does not return."
    def ring(*_):
        raise Forever
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return function()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)

def outcome(function):
    try:
        return function()
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)
"""

RELEASES = [
    "mmdet/3.3.0", "mmdet/3.0.0", "mmdet/onedl", "mmdet/2.28.2", "mmdet/2.14.0", "mmdet3d/1.4.0",
    "mmengine/0.1.0",
]  # fmt: skip
# For the slow ones.
OLD_STACK_IN_MATRIX = ["mmdet/3.3.0", pytest.param("mmdet/2.28.2", marks=pytest.mark.matrix)]


def run(processes, folder, release, program, *arguments, limit=200):
    made_up.write_files(folder, {"samples.py": SAMPLES})
    environ = layers.openmmlab_environment(folder, release)
    environ["PYTHONPATH"] = "%s:%s" % (folder, environ["PYTHONPATH"])
    file = folder / "program.py"
    file.write_text(program)
    return processes.run([sys.executable, file, *arguments], environ, limit)


ALL_EMPTY = """
import json
import ddp_patches.auto
from samples import Drop, NEW, Samples, OwnLoop, outcome, within

def tries(made, index=3, seconds=5):
    text = outcome(lambda: within(seconds, lambda: made[index]))
    return [str(text), len(made.tried), sorted(set(made.tried)) == list(range(made.length))]

limits = {"max_refetch": 1500} if NEW else {}
ours = [tries(kind(700, Drop(), **limits)) for kind in (Samples, OwnLoop)]
import ddp_patches
applied = [row.state for row in ddp_patches.status().patches if row.id.endswith(".resample") and
           row.target.endswith("BaseDataset._rand_another" if NEW else "custom:CustomDataset._rand_another")]
ddp_patches.disable()
upstream = [tries(kind(700, Drop(), **limits)) for kind in (Samples, OwnLoop)]
print(json.dumps({"ours": ours, "upstream": upstream, "applied": applied}))
"""


@pytest.mark.upstream_fault("mmengine.resample")
@pytest.mark.parametrize("release", RELEASES)
def test_a_data_set_without_a_good_sample_is_an_error_that_says_why(processes, tmp_path, release):
    """Upstream draws for ever, but for mmengine's own loop, which ends without a reason."""
    result = run(processes, tmp_path, release, ALL_EMPTY).check()
    answer = result.answer
    assert answer["applied"] == ["applied"]
    has_bound = not release.startswith("mmdet/2")
    counts = [1500 if has_bound else 1400, 1400]
    for (text, tried, all_of_them), draws, kind in zip(answer["ours"], counts, ("Samples", "OwnLoop")):
        assert (tried, all_of_them) == (draws + 1, True)
        assert text.startswith("NoSample: %s (700 samples): %d draws for one sample" % (kind, draws))
        assert "of %d that were looked at, by Drop (step 2 of 2): %d." % (draws, draws) in text
        assert "The first indices to look at: 3, " in text
    (text, tried, _), own_loop = answer["upstream"]
    if has_bound:
        assert (
            text == "Exception: Cannot find valid image after 1500! Please check your image path and pipeline"
        )
        assert tried == 1501
    else:
        assert text.startswith("Forever") and tried > 3000
    assert own_loop[0].startswith("Forever") and own_loop[1] > 3000
    lines = [line for line in result.stderr.splitlines() if "50 draws for one sample" in line]
    assert len(lines) == 2, result


ONE_GOOD = """
import json
import ddp_patches.auto
from samples import Drop, NEW, Samples, OwnLoop, outcome

answer = {}
limits = {"max_refetch": 60000} if NEW else {}
for kind in (Samples, OwnLoop):
    made = kind(28130, Drop([77]), **limits)
    got = made[5]["index"]
    answer[kind.__name__] = [got, len(made.tried), len(set(made.tried))]
reasons = [row.reason for row in ddp_patches.status().patches if row.target.endswith("._rand_another")]

from torch.utils.data import DataLoader
empty = Samples(30, Drop(), **({"max_refetch": 60} if NEW else {}))
text = outcome(lambda: list(DataLoader(empty, num_workers=1)))
print(json.dumps({"found": answer, "reasons": reasons, "error": text}))
"""


@pytest.mark.parametrize("release", ["mmdet/3.3.0", "mmdet/2.28.2"])
def test_one_good_sample_among_28130_is_found(processes, tmp_path, release):
    """In at most as many draws as there are samples: none is tried twice."""
    answer = run(processes, tmp_path, release, ONE_GOOD).check().answer
    assert set(answer["found"]) == {"Samples", "OwnLoop"}
    draws = 0
    for got, tried, different in answer["found"].values():
        assert got == 77
        assert tried == different <= 28130
        draws += tried - 1
    # What is counted in this process is in its ledger, and so in the job's.
    assert any("Empty samples replaced: 2, with %d draws;" % draws in reason for reason in answer["reasons"])
    # What a loader's worker raises arrives with all it says.
    assert answer["error"].startswith("NoSample: Caught NoSample in DataLoader worker process 0.")
    assert ", loader worker 0]. Turned into None, of" in answer["error"]


RANDOM = """
import json
import ddp_patches.auto
import numpy as np
from samples import Drop, NEW, Samples, outcome

np.random.seed(0)
limits = {"max_refetch": 10000} if NEW else {}
answer = {}
for length, rate in ((2, 0.5), (16, 0.9), (128, 0.99)):
    made = Samples(length, Drop(rate=rate), **limits)
    kept = 0
    for number in range(5000):
        kept += made[number % length] is not None
    answer[str(length)] = [kept, len(made.tried) / 5000 * (1 - rate)]
print(json.dumps(answer))
"""


@pytest.mark.parametrize("release", OLD_STACK_IN_MATRIX)
def test_a_pipeline_that_fails_at_random_ends_no_job(processes, tmp_path, release):
    """5,000 fetches each: an early end would crash jobs that upstream finishes."""
    result = run(processes, tmp_path, release, RANDOM).check()
    assert set(result.answer) == {"2", "16", "128"}
    for kept, tries in result.answer.values():
        assert kept == 5000
        assert 0.9 < tries < 1.1  # as often as it takes at this rate
    lines = [line for line in result.stderr.splitlines() if "50 draws for one sample" in line]
    assert 1 <= len(lines) <= 5  # thousands of fetches took that many


HEALTHY = """
import json
import ddp_patches.auto
import numpy as np
from torch.utils.data import DataLoader
from samples import NEW, Samples, crop

def first(batch):
    return batch[0]

def epoch(workers):
    np.random.seed(7)
    import torch
    torch.manual_seed(7)
    loader = DataLoader(Samples(40, crop), shuffle=True, num_workers=workers, collate_fn=first)
    return [[data["index"], data["crop"]] for data in loader] + [int(np.random.randint(10**6))]

ours = [epoch(0), epoch(2)]
ddp_patches.disable()
print(json.dumps({"ours": ours, "upstream": [epoch(0), epoch(2)]}))
"""


@pytest.mark.parametrize("release", ["mmdet/3.3.0", "mmdet/2.28.2", "mmdet/2.14.0", "mmengine/0.1.0"])
def test_without_empty_samples_an_epoch_is_upstreams(processes, tmp_path, release):
    answer = run(processes, tmp_path, release, HEALTHY).check().answer
    assert answer["ours"] == answer["upstream"]
    assert sorted(data[0] for data in answer["ours"][1][:-1]) == list(range(40))


WORKERS = """
import json, os, sys
import ddp_patches.auto
import numpy as np, torch
from torch.utils.data import DataLoader
from samples import Drop, NEW, Samples

class Reporting(Samples):
    "Says what it tried for each."
    def __getitem__(self, index):
        del self.tried[:]
        data = super().__getitem__(index)
        return {"index": data["index"], "tried": list(self.tried)}

def first(batch):
    return batch[0]

def same_state(worker):
    np.random.seed(3)  # as without torch's own seeding

def epoch(how, init=None):
    torch.manual_seed(11)
    np.random.seed(11)
    limits = {"max_refetch": 5000} if NEW else {}
    made = Reporting(40, Drop(range(20, 40)), **limits)
    keywords = {"multiprocessing_context": how, "collate_fn": first, "worker_init_fn": init}
    loader = DataLoader(made, num_workers=2 if how else 0, **keywords)
    return [data["tried"] for data in loader]

if __name__ == "__main__":
    epochs = {how: epoch(how) for how in sys.argv[1:]}
    ranks = []
    for rank in ("0", "1", "1"):
        os.environ["RANK"] = rank
        ranks.append(epoch(None))
    print(json.dumps({"epochs": epochs, "same": epoch("fork", same_state), "ranks": ranks}))
"""


@pytest.mark.parametrize("release", OLD_STACK_IN_MATRIX)
def test_workers_and_ranks_draw_differently_and_repeat_with_the_seed(processes, tmp_path, release):
    """Also workers that were spawned, which are armed by their environment."""
    # To import mmdet in a spawned worker takes ten seconds.
    kinds = ["fork", "spawn"] if release == "mmdet/2.28.2" else ["fork", "spawn", "forkserver"]
    answer = run(processes, tmp_path, release, WORKERS, *kinds).check().answer
    epochs = answer["epochs"]
    assert list(epochs) == kinds
    assert all(epochs[kind] == epochs["fork"] for kind in kinds)
    for index, tried in enumerate(epochs["fork"]):
        assert tried[0] == index
        assert tried[-1] >= 20
        assert len(set(tried)) == len(tried), "drawn twice"
        assert max(tried[:-1], default=0) < 20
    # Here the generators of both workers were in the same state; samples come from them in turn.
    draws = [tried[1] for tried in answer["same"][:2]]
    assert draws[0] != draws[1]
    # And here those of two ranks, the second one run twice.
    first, second, again = answer["ranks"]
    assert first[:5] != second[:5]
    assert second == again


NESTED = """
import json
import ddp_patches.auto
from samples import Drop, NEW, Samples, Recovering, Recursive, outcome, within

if NEW:
    from mmengine.dataset import ConcatDataset, RepeatDataset, ClassBalancedDataset
else:
    from mmdet.datasets import ConcatDataset, RepeatDataset, ClassBalancedDataset

def cat_ids(self, index):
    return [0]
Samples.get_cat_ids = cat_ids
Samples.PALETTE = None
limits = {"max_refetch": 5000} if NEW else {}

def fresh():
    return Samples(40, Drop([9]), **limits)

class Fetching:
    "A transform that fetches other samples of the same data set, as copy-paste does."
    def __call__(self, data):
        if data["index"] < 35 and not self.inside:
            self.inside = True
            data["other"] = self.made[30]["index"]
            self.inside = False
        return data
    inside = False

answer = {}
for name, wrap in {
    "concat": lambda: ConcatDataset([fresh(), fresh()]),
    "repeat": lambda: RepeatDataset(fresh(), 2),
    "balanced": lambda: ClassBalancedDataset(fresh(), 0.5),
}.items():
    wrapped = wrap()
    answer[name] = [wrapped[i]["index"] for i in (0, 39, len(wrapped) - 1)]

if not NEW:
    from mmdet.datasets import MultiImageMixDataset, PIPELINES

    @PIPELINES.register_module()
    class Mix:
        "As a mosaic: three more samples."
        def get_indexes(self, data_set):
            return [0, 9, 39]

        def __call__(self, data):
            return dict(data, mixed=[other["index"] for other in data["mix_results"]])

    mixed = MultiImageMixDataset(fresh(), [dict(type="Mix")])[5]
    answer["mixed"] = [mixed["index"], *mixed["mixed"]]

fetching = Fetching()
made = fetching.made = Samples(40, fetching, Drop([9]), **limits)
del made.tried[:]
data = within(20, lambda: made[0])
answer["fetching"] = [data["index"], data["other"]]

made = Recovering(40, Drop([9]), **limits)
answer["recovering"] = [made[0]["index"], len(made.tried) == len(set(made.tried))]
answer["recursive"] = Recursive(40, Drop(range(5, 40)), **limits)[0]["index"] >= 5
answer["recursive, all empty"] = str(outcome(lambda: Recursive(40, Drop(), **limits)[0]))[:14]

import threading
shared, wrong = Samples(200, Drop(range(100, 200)), **limits), []
def fetch():
    for index in range(100):
        if shared[index]["index"] < 100:
            wrong.append(index)
threads = [threading.Thread(target=fetch) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
answer["threads"] = wrong
import pickle
answer["pickled"] = sorted(vars(pickle.loads(pickle.dumps(shared)))) == sorted(vars(Samples(1, **limits)))
print(json.dumps(answer))
"""


@pytest.mark.parametrize("release", ["mmdet/3.3.0", "mmdet/2.28.2"])
def test_wrappers_nesting_recursion_and_threads(processes, tmp_path, release):
    """Nothing is stored on the data set either, which is pickled to workers."""
    answer = run(processes, tmp_path, release, NESTED).check().answer
    assert answer["concat"] == answer["repeat"] == answer["balanced"] == [9, 9, 9]
    assert answer.get("mixed", [9, 9, 9, 9]) == [9, 9, 9, 9]
    assert answer["fetching"] == [9, 9]
    assert answer["recovering"] == [9, True]
    assert answer["recursive"] is True
    assert answer["recursive, all empty"] == "RecursionError"
    assert answer["threads"] == []
    assert answer["pickled"] is True


ASPECTS = """
import json
import ddp_patches.auto
from samples import Drop, Samples, Forever, within

portraits = range(10)

def fetch():
    return within(3, lambda: Samples(40, Drop(range(10, 40)), portraits=portraits)[2]["index"])

ours = fetch()
ddp_patches.disable()
try:
    upstream = fetch()
except Forever:
    upstream = "forever"
print(json.dumps({"ours": ours >= 10, "upstream": upstream}))
"""


@pytest.mark.release(name="mmdet/2.28.2")
def test_images_of_one_aspect_ratio_that_are_all_empty(processes, tmp_path):
    """mmdet 2.x stays among the images of one aspect ratio, and never returns."""
    assert run(processes, tmp_path, "mmdet/2.28.2", ASPECTS).check().answer == {
        "ours": True,
        "upstream": "forever",
    }


FAILING = """
import json
import ddp_patches.auto
from samples import Drop, NEW, Samples
from ddp_patches.patches import _resampling

calls = []
def broken(*_):
    calls.append(1)
    raise ZeroDivisionError("ours")
_resampling._draw = broken
made = Samples(40, Drop(range(20, 40)))
got = made[0]["index"]
rows = [row for row in ddp_patches.status().patches if row.call_failures]
print(json.dumps({"got": got >= 20, "as often": len(calls) == len(made.tried) - 1,
                  "failures": sum(row.call_failures for row in rows) >= len(calls)}))
"""


@pytest.mark.parametrize("release", ["mmdet/3.3.0", "mmdet/2.28.2"])
def test_upstream_draws_where_ours_fails(processes, tmp_path, release):
    answer = run(processes, tmp_path, release, FAILING).check().answer
    assert answer == {"got": True, "as often": True, "failures": True}
