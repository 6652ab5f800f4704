import os
import pathlib

USER_CONFIG_DIR = pathlib.Path(os.environ["YOLO_CONFIG_DIR"])
