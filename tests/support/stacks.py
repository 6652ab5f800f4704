"""How a process imports each release of matrix/cells.json, and what our patches find in it."""

from __future__ import annotations

import pathlib
from typing import Dict, FrozenSet, Mapping, NamedTuple

from support import environment, layers, releases


class Stack(NamedTuple):
    """What one release is imported by."""

    packages: FrozenSet[str]  # those with patches that are imported then
    modules: str  # after torch and its launcher; together they have all targets of patches
    held: str  # "MODULE:NAME …", what frameworks and users' scripts import by name
    absent: Mapping[str, str]  # how the reason begins, for patches of which a target is not there


_TORCHS = " ".join(
    "torch.distributed:" + name
    for name in ("barrier", "init_process_group", "new_group", "destroy_process_group")
)
_ALWAYS_ABSENT = {"torch.launcher": "this process is no launcher that Ultralytics has started"}
_MMDET_2S = {
    "mmcv.collect_results": "there is no module mmcv.engine.test",
    "mmcv.init_dist": "there is no module mmcv.runner.dist_utils",
    "mmdet.collect_results": "there is no module mmdet.apis.test",
    "mmdet.resample": "there is no variant for mmdet 3.",
}


def _stack(packages: str, modules: str, held: str, absent: Mapping[str, str] = _ALWAYS_ABSENT) -> Stack:
    names = frozenset(["torch", *packages.split()])
    return Stack(names, modules, "%s %s" % (_TORCHS, held), {**_ALWAYS_ABSENT, **absent})


def _ultralytics(root: str) -> Stack:
    modules = " ".join(root + name for name in (".engine.trainer", ".engine.validator", ".utils.dist"))
    held = "{0}.utils.dist:generate_ddp_command {0}.utils.torch_utils:torch_distributed_zero_first"
    return _stack("ultralytics", modules, held.format(root))


def _yolov5(packages: str) -> Stack:
    modules = "yolov5.utils.torch_utils yolov5.utils.dataloaders"
    held = "yolov5.utils.torch_utils:torch_distributed_zero_first"
    # The place of a checkout.
    return _stack(packages, modules, held, {"yolov5.zero_first": "utils.torch_utils is not imported yet"})


def _mmengine(packages: str = "", more: str = "", absent: Mapping[str, str] = _ALWAYS_ABSENT) -> Stack:
    held = "mmengine.dist:init_dist mmengine.dist:collect_results_cpu"
    if packages:
        absent = {**_MMDET_2S, **absent}
        held += " mmdet.utils:reduce_mean"
    return _stack("mmengine " + packages, "mmengine.dataset mmengine.dist " + more, held, absent)


def _mmcv(packages: str = "", more: str = "") -> Stack:
    held = "mmcv.runner:init_dist mmcv.engine:collect_results_cpu"
    if packages:
        held += " mmdet.core:reduce_mean"
    return _stack("mmcv " + packages, "mmcv.runner mmcv.engine " + more, held)


_MMDET_2, _MMDET_3 = "mmdet.core mmdet.datasets mmdet.apis ", "mmdet.utils "

STACKS: Dict[str, Stack] = {
    **{
        "ultralytics/" + version: _ultralytics(
            "ultralytics.yolo" if version in ("8.0.40", "8.0.100", "8.0.120", "8.0.132") else "ultralytics"
        )
        for version in releases.ULTRALYTICS
    },
    "yolov5/7.0.14": _yolov5("yolov5 ultralytics"),
    "yolov5/6.2.3": _yolov5("yolov5"),
    "mmengine": _mmengine(),
    "mmengine/0.1.0": _mmengine(),
    "mmcv": _mmcv(),
    "mmdet/3.3.0": _mmengine("mmcv mmdet", _MMDET_3),
    "mmdet/3.0.0": _mmengine("mmcv mmdet", _MMDET_3),
    "mmdet/onedl": _mmengine("mmcv mmdet", _MMDET_3),
    "mmdet/2.28.2": _mmcv("mmdet", _MMDET_2),
    "mmdet/2.14.0": _mmcv("mmdet", _MMDET_2),
    "mmdet3d/1.4.0": _mmengine(
        "mmcv mmdet mmdet3d",
        _MMDET_3 + "mmdet3d.datasets",
        {"mmdet3d.resample": "there is no variant for mmdet3d 1."},
    ),
    "mmdet3d/1.0.0rc6": _mmcv("mmdet mmdet3d", _MMDET_2 + "mmdet3d.datasets"),
}


def environment_of(folder: pathlib.Path, name: str, **variables: str) -> Dict[str, str]:
    """`environment.clean` for a process that imports release `name` on the CPU."""
    kind, _, version = name.partition("/")
    if kind == "ultralytics":
        return layers.ultralytics_environment(folder, version, **variables)
    if kind == "yolov5":
        path = environment.CPU_VISION, *map(layers.layer, releases.needed(name))
        return environment.clean(folder, *path, **{"YOLO_AUTOINSTALL": "false", **variables})
    return layers.openmmlab_environment(folder, name, **variables)
