"""Configuration files of detectors that train on the CPU in seconds: mmdet's own, made small."""

from __future__ import annotations

import pathlib

from support import layers

# What the heads of both have in common: ATSS, whose loss averages the number of positives over the ranks.
_SMALL = """
_base_ = BASE
model = dict(
    backbone=dict(depth=18, init_cfg=None),
    neck=dict(in_channels=[64, 128, 256, 512], out_channels=64),
    bbox_head=dict(num_classes=2, in_channels=64, feat_channels=64, stacked_convs=1),
    test_cfg=dict(score_thr=0.0),  # there is something to evaluate after one epoch
)
classes = ("box", "bar")
work_dir = RUNS
load = dict(type="LoadImageFromFile")
boxes = dict(type="LoadAnnotations", with_bbox=True)
"""

_MMDET_3 = """
resize = dict(type="Resize", scale=(64, 64), keep_ratio=True)
train_pipeline = [load, boxes, resize, dict(type="RandomFlip", prob=0.5), dict(type="PackDetInputs")]
shape = ("img_id", "img_path", "ori_shape", "img_shape", "scale_factor")
test_pipeline = [load, resize, boxes, dict(type="PackDetInputs", meta_keys=shape)]
common = dict(data_root=DATA, data_prefix=dict(img=""), metainfo=dict(classes=classes))
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        ann_file="train.json",
        filter_cfg=dict(filter_empty_gt=False, min_size=1),
        pipeline=train_pipeline,
        **common,
    ),
)
val_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(ann_file="val.json", pipeline=test_pipeline, **common),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=ANNOTATIONS)
test_evaluator = val_evaluator
train_cfg = dict(max_epochs=1)
default_hooks = dict(logger=dict(interval=1))
"""

_MMDET_2 = """
resize = dict(type="Resize", img_scale=(64, 64), keep_ratio=True)
normalize = dict(type="Normalize", mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True)
pad = dict(type="Pad", size_divisor=32)
train_pipeline = [
    load,
    boxes,
    resize,
    dict(type="RandomFlip", flip_ratio=0.5),
    normalize,
    pad,
    dict(type="DefaultFormatBundle"),
    dict(type="Collect", keys=["img", "gt_bboxes", "gt_labels"]),
]
views = [resize, dict(type="RandomFlip"), normalize, pad]
views += [dict(type="ImageToTensor", keys=["img"]), dict(type="Collect", keys=["img"])]
flips = dict(type="MultiScaleFlipAug", img_scale=(64, 64), flip=False, transforms=views)
common = dict(data_root=DATA, img_prefix="", classes=classes)
data = dict(
    samples_per_gpu=2,
    workers_per_gpu=0,
    persistent_workers=False,
    train=dict(ann_file="train.json", filter_empty_gt=False, pipeline=train_pipeline, **common),
    val=dict(ann_file="val.json", pipeline=[load, flips], **common),
    test=dict(ann_file="val.json", pipeline=[load, flips], **common),
)
runner = dict(max_epochs=1)
log_config = dict(interval=1)
"""


def configuration(folder: pathlib.Path, layer: str, data: pathlib.Path, more: str = "") -> pathlib.Path:
    """Write a training of one epoch on the COCO data set `data`, results under `folder`; return its file.

    `layer`: the mmdet to train with. `more`: lines that are added.
    """
    base = mim(layer) / "configs" / "atss" / "atss_r50_fpn_1x_coco.py"
    text = _SMALL + (_MMDET_2 if layer.startswith("mmdet/2") else _MMDET_3) + more
    values = {"BASE": base, "RUNS": folder / "runs", "DATA": "%s/" % data, "ANNOTATIONS": data / "val.json"}
    for name, value in values.items():
        text = text.replace(name, repr(str(value)))
    path = folder / "detector.py"
    path.write_text(text, encoding="utf-8")
    return path


def mim(layer: str) -> pathlib.Path:
    """The installed mmdet's own `tools` and `configs`."""
    return layers.layer(layer) / "mmdet" / ".mim"
