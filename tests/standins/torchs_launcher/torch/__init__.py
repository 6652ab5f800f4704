"""A stand-in for torch: as much of its launcher as a launch needs, without any computing."""

__version__ = "2.99.0"
