"""A tiny detection data set in YOLO's layout, made on the spot: bright rectangles on dark noise."""

from __future__ import annotations

import pathlib
import random
import struct
import zlib
from typing import Tuple

IMAGE_SIZE = 64  # pixels, both ways
CLASSES = ["box", "bar"]

Box = Tuple[int, int, int, int, int]  # class, left, top, width, height; pixels


def make(folder: pathlib.Path, train: int = 16, val: int = 8, seed: int = 0) -> pathlib.Path:
    """Write `train` and `val` images with labels under `folder`, and return the path of its data.yaml.

    The same arguments give the same bytes. Every fourth image is without objects and label file.
    """
    draw = random.Random(seed)
    for split, count in (("train", train), ("val", val)):
        images, labels = folder / "images" / split, folder / "labels" / split
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        for number in range(count):
            boxes = [] if number % 4 == 3 else [_box(draw) for _ in range(draw.randint(1, 3))]
            (images / ("%03d.png" % number)).write_bytes(_png(_pixels(draw, boxes)))
            if boxes:
                text = "".join(_label(box) for box in boxes)
                (labels / ("%03d.txt" % number)).write_text(text, encoding="utf-8")
    names = "".join("  %d: %s\n" % pair for pair in enumerate(CLASSES))
    description = folder / "data.yaml"
    description.write_text(
        "path: %s\ntrain: images/train\nval: images/val\nnames:\n%s" % (folder.resolve(), names),
        encoding="utf-8",
    )
    return description


def _box(draw: random.Random) -> Box:
    width, height = draw.randint(12, 32), draw.randint(12, 32)
    left, top = draw.randint(0, IMAGE_SIZE - width), draw.randint(0, IMAGE_SIZE - height)
    return int(width > height), left, top, width, height


def _label(box: Box) -> str:
    """One line of a label file: class, centre and size as fractions of the image."""
    kind, left, top, width, height = box
    centre = (left + width / 2, top + height / 2)
    return "%d %.6f %.6f %.6f %.6f\n" % (kind, *(value / IMAGE_SIZE for value in (*centre, width, height)))


def _pixels(draw: random.Random, boxes: list[Box]) -> list[bytearray]:
    """Rows of RGB bytes."""
    rows = [bytearray(draw.randrange(80) for _ in range(3 * IMAGE_SIZE)) for _ in range(IMAGE_SIZE)]
    for kind, left, top, width, height in boxes:
        colour = bytes((240, 220, 60) if kind else (60, 120, 250))
        for row in rows[top : top + height]:
            row[3 * left : 3 * (left + width)] = colour * width
    return rows


def _png(rows: list[bytearray]) -> bytes:
    """Encode rows of RGB bytes. By hand, because the tests' helpers may not need an image library."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", len(rows[0]) // 3, len(rows), 8, 2, 0, 0, 0)  # 8 bits a colour, RGB
    body = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
