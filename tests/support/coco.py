"""The tiny detection data set again, described as COCO does: what OpenMMLab's detectors read."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, List

from support import dataset


def make(folder: pathlib.Path, train: int = 24, val: int = 8, seed: int = 0) -> pathlib.Path:
    """Write `train` and `val` images and `train.json` and `val.json` under `folder`; return `folder`.

    File names are relative to it. Every fourth image is without objects.
    """
    dataset.make(folder, train, val, seed)
    for split in ("train", "val"):
        (folder / (split + ".json")).write_text(json.dumps(_description(folder, split)), encoding="utf-8")
    return folder


def _description(folder: pathlib.Path, split: str) -> Dict[str, Any]:
    size = dataset.IMAGE_SIZE
    images: List[Dict[str, Any]] = []
    annotations: List[Dict[str, Any]] = []
    for path in sorted((folder / "images" / split).iterdir()):
        name = path.relative_to(folder).as_posix()
        images.append({"id": len(images), "file_name": name, "width": size, "height": size})
        labels = folder / "labels" / split / (path.stem + ".txt")
        for line in labels.read_text(encoding="utf-8").splitlines() if labels.exists() else ():
            kind, x, y, width, height = map(float, line.split())
            box = [(x - width / 2) * size, (y - height / 2) * size, width * size, height * size]
            annotations.append(
                {
                    "id": len(annotations) + 1,  # pycocotools takes 0 for no match
                    "image_id": images[-1]["id"],
                    "category_id": int(kind),
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
    categories = [{"id": number, "name": name} for number, name in enumerate(dataset.CLASSES)]
    return {"images": images, "annotations": annotations, "categories": categories}
