"""Which distributions hold the packages that we patch, and what of a release's files is of interest."""

from __future__ import annotations

from typing import Iterable, Mapping, Optional

from ddp_patches.engine import catalogue, definitions, fingerprint
from ddp_patches.engine.patch import Patch
from ddp_patches.inspection import installed

# By import name: (distribution, the releases that are looked at). The Python files of mmcv-full are those of
# mmcv, and those of mmcv 2.x are mmcv-lite's.
DISTRIBUTIONS = {
    "ultralytics": [("ultralytics", ">=8.0.0")],
    "yolov5": [("yolov5", ">=6.0.0")],
    "mmdet": [("mmdet", ">=2.0"), ("onedl-mmdetection", "")],
    "mmdet3d": [("mmdet3d", "")],
    "mmengine": [("mmengine", ""), ("onedl-mmengine", "")],
    "mmcv": [("mmcv", ">=1.0,<1.99"), ("mmcv-lite", ""), ("onedl-mmcv", "")],
    "torch": [("torch", ">=1.12")],
}

# Of so many neighbouring releases one is looked at; between two that differ, the bound is sought.
STRIDES = {"ultralytics": 20}

_VERSION_FILES = ("version.py", "_version.py", "__about__.py", "__init__.py")


def targets(package: str) -> list[str]:
    """All targets in a package, as the patches write them (``module|older.module:attribute``)."""
    found = {
        str(variant.target)
        for patch in _patches(package)
        for variant in patch.variants
        # A checkout's own module name (utils.torch_utils) is in no distribution.
        if variant.target.modules[0].partition(".")[0] == package
    }
    return sorted(found)


def tested(package: str) -> set[str]:
    """The releases of a package that the tests of a patch are for, whether or not they have passed by now."""
    return {release for patch in _patches(package) for release in patch.tested}


def _patches(package: str) -> list[Patch]:
    """Our patches of a package, without a rehearsal's stand-ins and what tests have declared."""
    home = "ddp_patches.patches."
    return [
        patch
        for patch in catalogue.load()
        if patch.package == package and all(v.build.__module__.startswith(home) for v in patch.variants)
    ]


def file_names(package: str) -> list[str]:
    """The files of a release that may hold a target or the version."""
    names = ["%s/%s" % (package, name) for name in _VERSION_FILES]
    for target in targets(package):
        for module in target.partition(":")[0].split("|"):
            path = module.replace(".", "/")
            names += [path + ".py", path + "/__init__.py"]
    return list(dict.fromkeys(names))


def definition(target: str, files: Mapping[str, bytes]) -> Optional[fingerprint.Definition]:
    """What a target is in a release with these files; None where it is not there."""
    modules, _, attribute = target.partition(":")
    for module in modules.split("|"):
        path = module.replace(".", "/")
        for name in (path + ".py", path + "/__init__.py"):
            if name in files:
                found = fingerprint.of_source(files[name], attribute)
                if found is not None:
                    return found
    return None


def version(package: str, files: Mapping[str, bytes], otherwise: str) -> str:
    """The version that an imported package would give itself, which is what patches are chosen by."""
    for name in _written_in(package, files):
        try:
            found = installed.version_in(definitions.parse(files[name]))
        except definitions.Unreadable:
            continue
        if found:
            return found.partition("+")[0]
    return otherwise


def _written_in(package: str, files: Mapping[str, bytes]) -> Iterable[str]:
    return [name for name in ("%s/%s" % (package, each) for each in _VERSION_FILES) if name in files]
