"""How many GPUs the drivers show to this process, without importing torch."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

# With -1 they hide every GPU: the first from CUDA, the others from ROCm, which reads the first one too.
VISIBILITY_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

# A driver's library, its initialisation and its count. Both obey the variables above.
_DRIVERS = (
    ("libcuda.so.1", "cuInit", "cuDeviceGetCount"),
    ("libamdhip64.so", "hipInit", "hipGetDeviceCount"),
)


def visible(load: Callable[[str], Any] = ctypes.CDLL) -> int:
    """The number of GPUs; 0 where there is no driver, or one that cannot start."""
    return sum(_count(load, *driver) for driver in _DRIVERS)


def _count(load: Callable[[str], Any], library: str, initialise: str, count: str) -> int:
    number = ctypes.c_int(0)
    try:
        driver = load(library)
        failed = getattr(driver, initialise)(0) or getattr(driver, count)(ctypes.byref(number))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else max(number.value, 0)
