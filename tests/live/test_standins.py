"""The stand-ins themselves: a training that needs a wrong stand-in shows nothing about our patches."""

from __future__ import annotations

import sys

import pytest

from support import dataset, environment, layers
from support.releases import NEWEST_ULTRALYTICS


def test_torchvision_imports_and_its_nms_is_right(processes, tmp_path):
    """By hand: boxes 0 and 1 overlap by 0.81, 2 and 3 by 1/3; a box without area overlaps nothing."""
    program = """if True:
        import json, sys, torch, torchvision
        boxes = [[0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30], [25, 20, 35, 30], [5, 5, 5, 5]]
        scores = [0.5, 0.9, 0.7, 0.6, 0.1]
        nms = torchvision.ops.nms
        print(json.dumps({
            "kept": [nms(torch.tensor(boxes).float(), torch.tensor(scores), limit).tolist()
                     for limit in (0.9, 0.5, 0.3)],
            "empty": nms(torch.zeros(0, 4), torch.zeros(0), 0.5).tolist(),
            "loader": type(torchvision.__spec__.loader).__name__,
            "compiler": "torch._dynamo" in sys.modules,
            "compiled": torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item(),
        }))
        """
    result = processes.run(
        [sys.executable, "-c", program], environment.clean(tmp_path, environment.CPU_VISION)
    )
    assert result.check().answer == {
        "kept": [[1, 2, 3, 0, 4], [1, 2, 3, 4], [1, 2, 4]],
        "empty": [],
        "loader": "SourceFileLoader",
        "compiler": False,
        "compiled": 2.0,
    }


@pytest.mark.parametrize("layer", ["mmdet/3.3.0", "mmdet/2.28.2"])
def test_mmcv_imports_and_its_nms_is_right(processes, tmp_path, layer):
    """By hand: 0.81 for the first two. With an offset of 1 sides are longer by 1: 100/121, and 66/176."""
    program = """if True:
        import json, torch
        from mmcv.ops import batched_nms, nms, roi_align
        boxes = torch.tensor([[0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30], [25, 20, 35, 30]]).float()
        scores = torch.tensor([0.5, 0.9, 0.7, 0.6])
        limits = ((0.82, 0), (0.8, 0), (0.82, 1), (0.83, 1), (0.37, 1), (0.38, 1))
        kept = [nms(boxes, scores, limit, offset)[1].tolist() for limit, offset in limits]
        how = {"type": "nms", "iou_threshold": 0.3}
        by_class = batched_nms(boxes, scores, torch.tensor([0, 1, 0, 0]), how)[1].tolist()
        try:
            roi_align(torch.zeros(1, 1, 8, 8), torch.zeros(1, 5), 2)
        except NotImplementedError as error:
            print(json.dumps({"kept": kept, "by_class": by_class, "error": str(error)}))
        """
    result = processes.run(
        [sys.executable, "-c", program], layers.openmmlab_environment(tmp_path, layer)
    ).check()
    assert result.answer == {
        "kept": [[1, 2, 3, 0], [1, 2, 3], [1, 2, 3], [1, 2, 3, 0], [1, 2], [1, 2, 3]],
        "by_class": [1, 2, 0],
        "error": "mmcv's roi_align_forward is not compiled, and the tests have no stand-in for it",
    }


def test_operators_that_torchvision_has_are_left_alone(processes, tmp_path):
    """As on a machine whose torchvision fits its torch: here a small package takes its place."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("from . import extension\n", encoding="utf-8")
    (package / "extension.py").write_text("def _has_ops():\n    return 'own'\n", encoding="utf-8")
    program = "import sys, torchvision; print(torchvision.extension._has_ops(), 'torch' in sys.modules)"
    variables = environment.clean(tmp_path, environment.CPU_VISION, tmp_path)
    result = processes.run([sys.executable, "-c", program], variables)
    assert result.check().stdout == "own False\n"


def test_sockets_reach_this_machine_only(processes, tmp_path):
    """192.0.2.1 is reserved for documentation: nobody is there, so nothing is lost if this fails."""
    program = """if True:
        import errno, socket
        listener = socket.create_server(("127.0.0.1", 0))
        socket.create_connection(listener.getsockname(), timeout=5).close()
        try:
            socket.create_connection(("192.0.2.1", 80), timeout=5)
        except OSError as error:
            print(error.errno == errno.ENETUNREACH, "the tests stay" in str(error))
        """
    result = processes.run(
        [sys.executable, "-c", program], environment.clean(tmp_path, environment.CPU_VISION)
    )
    assert result.check().stdout == "True True\n"


@pytest.mark.release(name="ultralytics/" + NEWEST_ULTRALYTICS)
def test_a_training_runs_on_the_cpu(processes, tmp_path):
    """The base of all live tests: one process, without ddp_patches."""
    data = dataset.make(tmp_path / "data")
    program = """if True:
        import sys
        from ultralytics import YOLO
        YOLO("yolov8n.yaml").train(data=sys.argv[1], project=sys.argv[2], epochs=1, imgsz=64, batch=4,
                                   workers=0, device="cpu", plots=False)
        """
    result = processes.run(
        [sys.executable, "-c", program, data, tmp_path / "runs"],
        layers.ultralytics_environment(tmp_path, NEWEST_ULTRALYTICS),
        limit=240,
    )
    result.check()
    assert (tmp_path / "runs" / "train" / "weights" / "best.pt").is_file()
