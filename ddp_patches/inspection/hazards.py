"""What may end a training hours after its start although every patch fits: found before the start.

Each hazard is decided by a function of plain facts; :func:`collect` gathers the facts of this machine.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import tempfile
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..engine import versions
from ..runtime import run_folder
from ..settings import SWITCH, Loaded, SettingError, is_off
from . import installed
from .installed import Package

MIB, GIB = 1 << 20, 1 << 30
# A loader worker hands batches over through /dev/shm. Docker gives 64 MiB; one batch of 16 images of
# 640 x 640 floats takes 75 MiB.
_ENOUGH_SHARED_MEMORY = GIB
# A ledger is some kilobytes, but what torch and the frameworks write beside it is not.
_ENOUGH_DISK = 100 * MIB
_PICKLES_ITS_TRAINER = ">=8.4.140"  # releases of Ultralytics that need cloudpickle for several GPUs


@dataclasses.dataclass(frozen=True)
class Hazard:
    """One thing to know: a stable ``id`` for programs, what will happen, and what to do about it."""

    id: str
    message: str
    advice: str = ""


class Folder(NamedTuple):
    """A folder that is needed: the nearest one that exists, whether we may write there, free bytes."""

    path: str
    writable: bool
    free: Optional[int]


def collect(environ: Mapping[str, str], packages: Mapping[str, Package], loaded: Loaded) -> List[Hazard]:
    """Everything that is worth a warning on this machine, most likely killer first."""
    ultralytics = packages.get("ultralytics")
    runs = _home_of_runs(environ)
    found = [
        switched_off(environ),
        little_shared_memory(*shared_memory()),
        missing_cloudpickle(
            ultralytics.version if ultralytics else "", installed.locate("cloudpickle") is not None
        ),
        missing_ops(packages),
        bad_folder("home", "frameworks keep settings and downloads there", folder(home()),
                   "set HOME to a folder of your own (Ultralytics: YOLO_CONFIG_DIR)"),
        bad_folder("temporary", "torchrun and the loader workers need it", folder(_temporary()),
                   "set TMPDIR to a folder with room"),
        bad_folder("run_dir", "the ledgers of jobs cannot go there", folder(runs),
                   "set DDP_PATCHES_RUN_DIR to a folder of your own, or to none") if runs else None,
        no_user_entry(user_id(), has_user_entry()),
        unreachable_python(sys.flags.ignore_environment, sys.flags.isolated, sys.flags.no_site),
        limited_platform(sys.platform),
    ]  # fmt: skip
    settings = [Hazard("setting", problem) for problem in loaded.problems]
    return [hazard for hazard in found if hazard is not None] + settings


def switched_off(environ: Mapping[str, str]) -> Optional[Hazard]:
    """``DDP_PATCHES=0`` left over from some earlier attempt."""
    if not is_off(environ):
        return None
    return Hazard(
        "off", "%s=%s is set: nothing will be patched" % (SWITCH, environ[SWITCH]), "unset " + SWITCH
    )


def little_shared_memory(size: Optional[int], free: Optional[int]) -> Optional[Hazard]:
    """``size`` and ``free`` in bytes, None where there is no /dev/shm."""
    if size is None or free is None or (size >= _ENOUGH_SHARED_MEMORY and free >= _ENOUGH_SHARED_MEMORY // 4):
        return None
    message = "/dev/shm holds %s (%s free): loader workers die of a bus error" % (_bytes(size), _bytes(free))
    if size < _ENOUGH_SHARED_MEMORY:
        return Hazard("shared_memory", message, "docker run --shm-size=8g (or --ipc=host), or workers=0")
    return Hazard("shared_memory", message, "something left its files there: ls -la /dev/shm")


def missing_cloudpickle(ultralytics: str, has_cloudpickle: bool) -> Optional[Hazard]:
    """New Ultralytics releases install it in the middle of the first multi-GPU launch."""
    if not ultralytics or not versions.within(ultralytics, _PICKLES_ITS_TRAINER) or has_cloudpickle:
        return None
    message = "cloudpickle is missing: Ultralytics %s runs pip at its first multi-GPU launch" % ultralytics
    return Hazard("cloudpickle", message + ", which ends the job on a node without network",
                   "pip install cloudpickle")  # fmt: skip


def missing_ops(packages: Mapping[str, Package]) -> Optional[Hazard]:
    """mmcv's lite builds, and mmcv 1.x that is not mmcv-full, import without the ops that detectors need."""
    mmcv = packages.get("mmcv")
    detectors = [name for name in ("mmdet", "mmdet3d") if name in packages]
    if mmcv is None or not detectors or has_ops(mmcv.path):
        return None
    message = (
        "mmcv %s has no compiled ops: importing the models of %s ends in \"No module named 'mmcv._ext'\""
    )
    full = "mmcv-full" if mmcv.version.startswith("1.") else "mmcv"
    return Hazard("mmcv_ops", message % (mmcv.version, " and ".join(detectors)),
                   "install a build of %s for this torch: mim install %s" % (full, full))  # fmt: skip


def has_ops(mmcv: str) -> bool:
    """Whether the package in the folder ``mmcv`` holds its compiled module."""
    try:
        return any(name.startswith("_ext.") for name in os.listdir(mmcv))
    except OSError:
        return False


def bad_folder(id: str, why: str, found: Folder, advice: str) -> Optional[Hazard]:
    """A needed folder that cannot be written, or whose disk is full."""
    if not found.writable:
        return Hazard(id, "%s is not writable: %s" % (found.path, why), advice)
    if found.free is not None and found.free < _ENOUGH_DISK:
        return Hazard(
            id, "the disk of %s is full (%s free): %s" % (found.path, _bytes(found.free), why), advice
        )
    return None


def no_user_entry(uid: Optional[int], has_entry: bool) -> Optional[Hazard]:
    """Containers run as ``--user 1234`` know nobody of that number."""
    if uid is None or has_entry:
        return None
    return Hazard("user", "user id %d has no entry in /etc/passwd: getpass.getuser() fails in torch" % uid,
                   "export USER=me HOME=/tmp/me TORCHINDUCTOR_CACHE_DIR=/tmp/me/inductor")  # fmt: skip


def unreachable_python(ignores_environment: int, isolated: int, no_site: int) -> Optional[Hazard]:
    """This very Python was started in a way in which ours would not reach it."""
    switches = [("-I", isolated), ("-E", ignores_environment), ("-S", no_site)]
    given = [switch for switch, on in switches if on]
    if not given:
        return None
    return Hazard("python_switch", "this Python was started with %s, which ours cannot reach" % given[0],
                   "start python without it, or put import ddp_patches.auto first in the script")  # fmt: skip


def limited_platform(platform: str) -> Optional[Hazard]:
    """Where things are off that need fork, signals or /proc."""
    names = {"win32": "Windows", "darwin": "macOS", "cygwin": "Cygwin"}
    if platform.startswith("linux"):
        return None
    name = names.get(platform, platform)
    return Hazard("platform", "on %s only patching works; what needs signals, fork or /proc is off" % name,
                   "train on Linux for all of it")  # fmt: skip


def shared_memory() -> Tuple[Optional[int], Optional[int]]:
    """Size and free bytes of /dev/shm, or None twice."""
    try:
        found = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None, None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def folder(path: str) -> Folder:
    """What is known of ``path``, or of the folder in which it would be made."""
    nearest = os.path.abspath(path)
    while not os.path.isdir(nearest) and os.path.dirname(nearest) != nearest:
        nearest = os.path.dirname(nearest)
    free: Optional[int] = None
    try:
        usage = shutil.disk_usage(nearest)
        free = usage.free if usage.total else None  # /proc and the like have no size
    except OSError:
        pass
    return Folder(nearest, os.access(nearest, os.W_OK | os.X_OK), free)


def home() -> str:
    """The home folder; ``/`` for a user that has none, as Docker does it."""
    path = os.path.expanduser("~")
    return "/" if path.startswith("~") else path


def _home_of_runs(environ: Mapping[str, str]) -> str:
    """Where jobs put their ledgers; empty where they are to put none, or with settings that end a job."""
    try:
        return run_folder.base(environ) or ""
    except SettingError:
        return ""


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:  # there is none that can be written
        return os.environ.get("TMPDIR", "/tmp")


def user_id() -> Optional[int]:
    """The numeric user, None on Windows."""
    return os.getuid() if hasattr(os, "getuid") else None


def has_user_entry() -> bool:
    """Whether the system knows a name for this user, or the environment gives one."""
    if any(os.environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")):
        return True  # where getpass.getuser looks first
    try:
        import pwd

        return bool(pwd.getpwuid(os.getuid()))
    except (ImportError, KeyError):
        return False


def _bytes(count: int) -> str:
    return "%.1f GiB" % (count / GIB) if count >= GIB else "%d MiB" % (count // MIB)


def as_dicts(hazards: List[Hazard]) -> List[Dict[str, str]]:
    """For JSON."""
    return [dataclasses.asdict(hazard) for hazard in hazards]
