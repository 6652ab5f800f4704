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

# What OpenMMLab's packages import beside torch, numpy and OpenCV; for every layer below.
# The distribution; it imports an Ultralytics, which is another layer.
YOLOV5 = {
    "yolov5/7.0.14": ["yolov5==7.0.14"],
    "yolov5/6.2.3": ["yolov5==6.2.3", "gitpython", "gitdb", "smmap"],
}

OPENMMLAB_REQUIREMENTS = [
    "addict",
    "matplotlib<3.11",  # mmcv 1.x and mmengine before 0.10 use what 3.11 has taken away
    "pycocotools",
    "rich",
    "shapely",
    "six",
    "termcolor",
    "terminaltables",
    "yapf",
]

_MMDET3D_REQUIREMENTS = [
    "numba==0.60.0",
    "llvmlite==0.43.0",
    "nuscenes-devkit==1.1.11",
    "lyft-dataset-sdk",
    "cachetools",
    "descartes",
    "fire",
    "imageio",
    "joblib",
    "lazy-loader",
    "narwhals",
    "networkx",
    "plyfile",
    "prettytable",
    "pyquaternion",
    "scikit-image",
    "scikit-learn",
    "threadpoolctl",
    "tifffile",
    "trimesh",
    "wcwidth",
]

# Each layer with what is installed into it. mmcv comes without its compiled ops, which take half an hour to
# build: see standins/cpu_vision.
OPENMMLAB = {
    # For the configuration files alone. Each with what its Config imports.
    "mmengine": ["mmengine==0.10.7", "addict", "platformdirs", "rich", "termcolor", "yapf"],
    "mmcv": ["mmcv==1.7.2", "addict", "platformdirs", "yapf"],
    # reduce_mean in mmdet.utils; runner, data sets and registries of mmengine.
    "mmdet/3.3.0": ["mmdet==3.3.0", "mmcv-lite==2.1.0", "mmengine==0.10.7"],
    # The oldest of that form, with an mmengine whose init_dist takes no timeout in seconds, and which needs a
    # yapf of its time to write a configuration down.
    "mmdet/3.0.0": ["mmdet==3.0.0", "mmcv-lite==2.0.1", "mmengine==0.7.4", "yapf==0.32.0"],
    # reduce_mean in mmdet.core; runner and registries of mmcv 1.x.
    "mmdet/2.28.2": ["mmdet==2.28.2", "mmcv==1.7.2"],
    # Custom3DDataset, and what StreamPETR and its like are built on. It refuses mmcv from 1.7.1 on.
    "mmdet3d/1.0.0rc6": [
        "mmdet3d==1.0.0rc6",
        "mmcv==1.7.0",
        "mmdet==2.28.2",
        "mmsegmentation==0.30.0",
        *_MMDET3D_REQUIREMENTS,
    ],
    # The same import names under other distribution names.
    "mmdet/onedl": [
        "onedl-mmdetection==3.5.1",
        "onedl-mmengine==0.10.12",
        "imgaug",
        "imageio",
        "lazy-loader",
        "networkx",
        "scikit-image",
        "tifffile",
    ],
}

# Distributions that compile their ops whatever one says: of these the Python files alone, by layer.
UNPACKED = {"mmdet/onedl": "onedl-mmcv==2.3.6"}
