"""A real mmdet3d data set of scenes, some without any object, as StreamPETR and its like feed them."""

from __future__ import annotations

import re
import sys

import pytest

from support import layers, made_up

LAYER = "mmdet3d/1.0.0rc6"
SCENES, FRAMES, EMPTY_SCENES = 6, 8, (2, 4)

# As StreamPETR's data set: a loop of its own, the scene's number as flag, and a frame that knows by it
# whether the model's memory is that of the frame before.
DATA_SET = """
import pickle
import numpy as np
from mmdet3d.datasets import NuScenesDataset
from mmdet.datasets import DATASETS

SCENES, FRAMES, EMPTY_SCENES = %d, %d, %r

@DATASETS.register_module()
class SceneDataset(NuScenesDataset):
    def __init__(self, seq_mode=True, **keywords):
        super().__init__(**keywords)
        self.seq_mode = seq_mode
        self.tried = []
        scenes = [info["scene_token"] for info in self.data_infos]
        order = list(dict.fromkeys(scenes))
        self.flag = np.array([order.index(scene) for scene in scenes], dtype=np.int64)

    def get_data_info(self, index):
        self.tried.append(int(index))
        info = super().get_data_info(index)
        info["prev_exists"] = bool(index and self.flag[index - 1] == self.flag[index])
        return info

    def __getitem__(self, idx):
        if self.test_mode:
            return self.prepare_test_data(idx)
        while True:
            data = self.prepare_train_data(idx)
            if data is None:
                idx = self._rand_another(idx)
                continue
            return data

def write_infos(path):
    "An info file as mmdet3d's tools make it for nuScenes, without cameras."
    infos = []
    for scene in range(SCENES):
        for frame in range(FRAMES):
            count = 0 if scene in EMPTY_SCENES else 1 + frame %% 3
            infos.append({
                "token": "%%d-%%d" %% (scene, frame), "scene_token": "scene-%%d" %% scene,
                "prev": "" if not frame else "%%d-%%d" %% (scene, frame - 1), "frame_idx": frame,
                "lidar_path": "none.bin", "sweeps": [None] * frame, "cams": {},
                "timestamp": (scene * FRAMES + frame) * 500000,
                "gt_boxes": np.tile([5.0, 5.0, 0.0, 2.0, 4.0, 1.5, 0.1], (count, 1)),
                "gt_names": np.array(["car", "pedestrian", "car"][:count]),
                "gt_velocity": np.zeros((count, 2)),
                "num_lidar_pts": np.full(count, 9), "valid_flag": np.ones(count, dtype=bool),
            })
    with open(path, "wb") as file:
        pickle.dump({"infos": infos, "metadata": {"version": "v1.0-mini"}}, file)

def build(path, **keywords):
    from mmdet3d.datasets import build_dataset
    classes = ["car", "pedestrian"]
    keys = ["gt_bboxes_3d", "gt_labels_3d"]
    return build_dataset(dict(
        type="SceneDataset", ann_file=path, data_root=None, classes=classes, use_valid_flag=True,
        pipeline=[
            dict(type="LoadAnnotations3D", with_bbox_3d=True, with_label_3d=True),
            dict(type="ObjectNameFilter", classes=classes),
            dict(type="DefaultFormatBundle3D", class_names=classes),
            dict(type="Collect3D", keys=keys, meta_keys=["sample_idx", "prev_exists"]),
        ], **keywords))
""" % (SCENES, FRAMES, EMPTY_SCENES)

EPOCH = """
import json, os, signal, sys, warnings
warnings.simplefilter("ignore")
import ddp_patches.auto
import numpy as np, torch
import scenes
from mmdet3d.datasets import build_dataloader

def first(batch):
    meta = batch[0]["img_metas"].data
    return [meta["sample_idx"], bool(meta["prev_exists"]), len(batch[0]["gt_labels_3d"].data)]

class Forever(Exception):
    pass

def ring(*_):
    raise Forever

signal.signal(signal.SIGALRM, ring)
scenes.write_infos("infos.pkl")
made = scenes.build("infos.pkl")
answer = {"applied": {}}
for row in ddp_patches.status().patches:
    if row.id == "mmdet3d.resample":
        answer["applied"][row.target.rpartition(":")[2]] = row.state

torch.manual_seed(0)
loader = torch.utils.data.DataLoader(made, num_workers=2, collate_fn=first)
signal.alarm(100)
answer["epoch"] = list(loader)
signal.alarm(0)

ddp_patches.disable()
del made.tried[:]
signal.alarm(5)
try:
    made[scenes.EMPTY_SCENES[0] * scenes.FRAMES]
except Forever:
    answer["upstream"] = [len(made.tried), sorted(set(made.tried))]
print(json.dumps(answer))
"""


def run(processes, folder, program, limit=200, **variables):
    made_up.write_files(folder, {"scenes.py": DATA_SET})
    environ = layers.openmmlab_environment(folder, LAYER, **variables)
    environ["PYTHONPATH"] = "%s:%s" % (folder, environ["PYTHONPATH"])
    file = folder / "program.py"
    file.write_text(program)
    return processes.run([sys.executable, file], environ, limit)


def totals(text):
    """The numbers of every line of totals, added up."""
    pattern = (
        r"mmdet3d\.resample, in total, loader worker \d: Empty samples replaced: (\d+), with (\d+) draws; "
        r"those that took 50 draws or more: (\d+)\. Sequences without any sample: (\d+); frames of theirs "
        r"that another sequence's replaced: (\d+), of these by a first frame: (\d+)\. "
        r"Frames trained on another sequence's memory: (\d+)\."
    )
    lines = [[int(number) for number in found] for found in re.findall(pattern, text)]
    return len(lines), [sum(numbers) for numbers in zip(*lines)]


@pytest.mark.release(name=LAYER)
def test_an_epoch_with_scenes_without_objects_ends(processes, tmp_path):
    """Field reports: rank 1 stood in its loader for ever, the others timed out in reduce_mean."""
    result = run(processes, tmp_path, EPOCH).check()
    answer = result.answer
    assert answer["applied"]["Custom3DDataset._rand_another"] == "applied"
    tries, among = answer["upstream"]
    first = EMPTY_SCENES[0] * FRAMES
    assert tries > 50 * FRAMES and among == list(
        range(first, first + FRAMES)
    )  # it drew for ever, and only there

    assert len(answer["epoch"]) == SCENES * FRAMES
    for number, (token, has_memory, count) in enumerate(answer["epoch"]):
        scene, frame = divmod(number, FRAMES)
        assert count >= 1
        if scene in EMPTY_SCENES:  # replaced by where another scene begins, with an empty memory
            assert int(token.split("-")[0]) not in EMPTY_SCENES
            assert (token.split("-")[1], has_memory) == ("0", False)
        else:
            assert (token, has_memory) == ("%d-%d" % (scene, frame), frame > 0)

    workers, (samples, draws, long, scenes, replaced, by_first, on_others) = totals(result.stderr)
    empty = len(EMPTY_SCENES) * FRAMES
    assert (workers, samples, long, replaced, by_first, on_others) == (2, empty, 0, empty, empty, 0)
    assert scenes == 2 * len(EMPTY_SCENES)  # each by both workers
    # The rest of the scene, and then one first frame, or two where the first one was the other empty scene's.
    assert empty * FRAMES <= draws <= empty * (FRAMES + 1)


GLOBAL = """
import json
import ddp_patches.auto
import numpy as np
import scenes

scenes.write_infos("infos.pkl")
made = scenes.build("infos.pkl")
lengths = []
for frame in range(scenes.FRAMES):
    del made.tried[:]
    made[scenes.EMPTY_SCENES[0] * scenes.FRAMES + frame]
    lengths.append(len(made.tried))
from mmdet3d.datasets import Custom3DSegDataset
from mmdet3d.datasets.dataset_wrappers import CBGSDataset
balanced = CBGSDataset(made)
whole = all(balanced[number] is not None for number in range(len(balanced)))

class Rooms(Custom3DSegDataset):
    "Of segmentation, with another loop and the same draw; one room is not empty."
    def __init__(self):
        self.test_mode, self.flag, self.tried = False, np.zeros(40, dtype=np.uint8), []
        self.scene_idxs = np.arange(40)
        self.data_infos = [None] * 40

    def prepare_train_data(self, index):
        self.tried.append(int(index))
        return index if index == 33 else None

rooms = Rooms()
found = [int(rooms[2]), len(rooms.tried) == len(set(rooms.tried))]
made.pipeline.transforms.insert(1, lambda data: None)
try:
    made[0]
except RuntimeError as error:
    text = str(error)
print(json.dumps({"lengths": lengths, "balanced": whole, "rooms": found, "error": text}))
"""


@pytest.mark.release(name=LAYER)
def test_settings_class_balance_and_segmentation(processes, tmp_path):
    variables = {"DDP_PATCHES_RESAMPLE": "global", "DDP_PATCHES_MAX_RESAMPLES": "100"}
    answer = run(processes, tmp_path, GLOBAL, **variables).check().answer
    # Two samples of three are good, in any scene: hardly one takes as long as the scene has frames.
    assert sum(length <= FRAMES for length in answer["lengths"]) > FRAMES // 2
    assert answer["balanced"] is True
    assert answer["rooms"] == [33, True]
    assert answer["error"].startswith("SceneDataset (48 samples): 100 draws for one sample")
    assert "by <lambda> (step 2 of 5): 100." in answer["error"]
    assert "The bound is the setting max_resamples." in answer["error"]
