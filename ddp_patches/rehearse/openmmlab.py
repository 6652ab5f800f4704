"""OpenMMLab in a rehearsal: what mmcv 1.x and mmdet 2.x do with devices by themselves, on the CPU.

mmengine, and mmdet 3.x on it, follow what torch says about devices, and need nothing of their own.
"""

from __future__ import annotations

import os
from typing import Any, Callable

from .. import console
from ..engine.patch import patch

Function = Callable[..., Any]

_MODEL = "mmcv.parallel.distributed:MMDistributedDataParallel"
_ON_CPU = [-1]  # mmcv's device list for "unpack the batch, and leave it where it is"
_REPLICATED = "_use_replicated_tensor_module"

data_parallel = patch(
    "rehearse.mmcv",
    package="mmcv",
    summary="in a rehearsal: mmcv 1.x unpacks batches for a module on the CPU as for one on a GPU",
    why="its DistributedDataParallel unpacks them on their way to a device only",
    upstream="https://github.com/open-mmlab/mmcv/blob/1.x/mmcv/parallel/distributed.py",
    since="0.1.0",
    remove_when="never: it is part of the rehearsal",
    tested=("1.7.2",),
)

build = patch(
    "rehearse.mmdet",
    package="mmdet",
    summary="in a rehearsal: mmdet 2.x builds its distributed model on the CPU",
    why="it refuses to, where there is no device",
    upstream="https://github.com/open-mmlab/mmdetection/blob/2.x/mmdet/utils/util_distribution.py",
    since="0.1.0",
    remove_when="never: it is part of the rehearsal",
    tested=("2.28.2",),
)


def _with_batch_unpacked(original: Function) -> Function:
    def replacement(self: Any, *inputs: Any, **keywords: Any) -> Any:
        if not self.device_ids:
            (inputs,), (keywords,) = self.scatter(inputs, keywords, _ON_CPU)
        return original(self, *inputs, **keywords)

    return replacement


data_parallel.replaces(_MODEL + ".train_step")(_with_batch_unpacked)
data_parallel.replaces(_MODEL + ".val_step")(_with_batch_unpacked)


@data_parallel.replaces(_MODEL + "._run_ddp_forward")
def run_ddp_forward(original: Function) -> Function:
    unpacked = _with_batch_unpacked(original)

    def replacement(self: Any, *inputs: Any, **keywords: Any) -> Any:
        if not hasattr(self, _REPLICATED):
            # Releases of torch after 2.0 have no such attribute any more, and with GPUs it ends here.
            setattr(type(self), _REPLICATED, False)
            if os.environ.get("RANK", "0") == "0":
                console.warn(
                    "this torch is too new for this mmcv: with GPUs, validation ends in an AttributeError, "
                    "MMDistributedDataParallel has no %s. Here it goes on" % _REPLICATED
                )
        return unpacked(self, *inputs, **keywords)

    return replacement


@build.replaces("mmdet.utils.util_distribution:build_ddp", parameters=("model", "device"))
def build_ddp(original: Function) -> Function:
    def replacement(model: Any, device: str = "cuda", *args: Any, **keywords: Any) -> Any:
        # The module stays where it is: `cuda()` does nothing in a rehearsal.
        return original(model, "cuda" if device == "cpu" else device, *args, **keywords)

    return replacement
