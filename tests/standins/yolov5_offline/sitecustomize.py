"""Makes the label scan of YOLOv5 slow and the limit of process groups short, where a test asks for it.

SCAN_SECONDS is what the first scan of a process takes longer; GROUP_SECONDS is torch's default limit.
Besides, everything that the stand-in for torchvision does, whose start-up file this one hides.
"""

import datetime
import importlib.util
import os
import pathlib
import sys
import time

import wrapt


def _slow_down(dataloaders):
    data_set = dataloaders.LoadImagesAndLabels
    scan = data_set.cache_labels

    def cache_labels(self, *arguments, **keywords):
        data_set.cache_labels = scan
        print("rank %s scans the labels" % os.environ.get("RANK"), flush=True)
        time.sleep(float(os.environ["SCAN_SECONDS"]))
        return scan(self, *arguments, **keywords)

    data_set.cache_labels = cache_labels


def _shorten(c10d):
    c10d.default_pg_timeout = datetime.timedelta(seconds=float(os.environ["GROUP_SECONDS"]))


if "SCAN_SECONDS" in os.environ:
    for package in ("yolov5.", ""):
        wrapt.register_post_import_hook(_slow_down, package + "utils.dataloaders")
if "GROUP_SECONDS" in os.environ:
    wrapt.register_post_import_hook(_shorten, "torch.distributed.distributed_c10d")

_path = pathlib.Path(__file__).resolve().parents[1] / "cpu_vision" / "sitecustomize.py"
_spec = importlib.util.spec_from_file_location("cpu_vision", _path)
sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[_spec.name])
