"""The demo's stand-in, loaded by every Python that has this folder on PYTHONPATH. Not part of ddp_patches.

A label scan of hours and a limit of three hours are scaled down to seconds: reading the label of one image
takes DEMO_SECONDS_PER_IMAGE, and the limit that Ultralytics gives its process group becomes
DEMO_GROUP_LIMIT_SECONDS. It does so in both runs of the demo, with ddp_patches and without. Everything else
is Ultralytics' own.
"""

import datetime
import importlib.util
import os
import pathlib
import sys
import threading
import time

import wrapt

MARK = "[slow disk, a stand-in of the demo's]"


def _say(text):
    # A line of its own, also after a progress bar.
    sys.stderr.write("\n%s %s\n" % (MARK, text))
    sys.stderr.flush()


@wrapt.when_imported("ultralytics.engine.trainer")
def shorten_the_limit(trainer):
    """`timedelta(seconds=10800)`, as the trainer calls it, becomes the demo's limit."""
    limit_s = float(os.environ["DEMO_GROUP_LIMIT_SECONDS"])

    def timedelta(*args, **keywords):
        upstream = datetime.timedelta(*args, **keywords)
        if os.environ.get("RANK") == "0":
            _say("group limit %g s in the place of Ultralytics' %g s" % (limit_s, upstream.total_seconds()))
        return datetime.timedelta(seconds=limit_s)

    trainer.timedelta = timedelta


@wrapt.when_imported("ultralytics.data.dataset")
def slow_the_scan_down(dataset):
    """Reading takes its time, and one disk serves all threads of the scan, however many there are."""
    seconds = float(os.environ["DEMO_SECONDS_PER_IMAGE"])
    verify, scan = dataset.verify_image_label, dataset.YOLODataset.cache_labels
    disk = threading.Lock()

    def verify_slowly(*args, **keywords):
        with disk:
            time.sleep(seconds)
        return verify(*args, **keywords)

    def timed_scan(self, *args, **keywords):
        rank, count = os.environ.get("RANK", "-"), len(self.im_files)
        _say("rank %s begins to scan the labels of %d images" % (rank, count))
        began = time.monotonic()
        found = scan(self, *args, **keywords)
        _say("rank %s has scanned %d images in %.1f s" % (rank, count, time.monotonic() - began))
        return found

    dataset.verify_image_label = verify_slowly
    dataset.YOLODataset.cache_labels = timed_scan


def _load_the_tests_own():
    """Python runs one `sitecustomize` only, and this one hides that of the CPU stand-in for torchvision."""
    path = pathlib.Path(__file__).resolve().parents[2] / "standins" / "cpu_vision" / "sitecustomize.py"
    spec = importlib.util.spec_from_file_location("cpu_vision", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


_load_the_tests_own()
