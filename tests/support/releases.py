"""The framework releases that the tests run against. Read by the tests, and by noxfile.py as a file."""

from __future__ import annotations

# Newest torch for which both a CPU build and torchvision are easy to get, and the torchvision made for it.
TORCH = "2.13.0"
TORCHVISION = "0.28.0"

# One Ultralytics release for each way in which the code that we patch was written, and what tells it from the
# one before.
ULTRALYTICS = {
    "8.0.40": "ultralytics.yolo; _setup_ddp(rank, world_size); no timeout of its own",
    "8.0.100": "_setup_ddp(world_size); RANK as device",
    "8.0.120": "timeout of an hour; NCCL_BLOCKING_WAIT",
    "8.0.132": "timeout of three hours; late ultralytics.yolo",
    "8.1.20": "ultralytics.engine",
    "8.2.103": "TORCH_NCCL_BLOCKING_WAIT; zero_first gets the local rank",
    "8.3.190": "device_ids only on NCCL",
    "8.4.0": "_setup_ddp()",
    "8.4.100": "device taken from the device string at LOCAL_RANK",
    "8.4.190": "cuda, npu and xpu; workers load trainer and callbacks with cloudpickle",
}

NEWEST_ULTRALYTICS = "8.4.190"

# For the configuration files alone: neither trains here. Each with what its Config imports.
OPENMMLAB = {
    "mmengine": ["mmengine==0.10.7", "addict", "platformdirs", "rich", "termcolor", "yapf"],
    "mmcv": ["mmcv==1.7.2", "addict", "platformdirs", "yapf"],
}
