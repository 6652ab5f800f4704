"""A stand-in for Ultralytics: its relaunch, with a rank that runs what RANK_DOES says."""

import torch  # noqa: F401

__version__ = "8.4.190"
