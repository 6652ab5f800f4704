"""Import for effect: ``import ddp_patches.auto`` arms this process and the ones it starts."""

from . import _finder

_finder.start()
_finder.arm_children()
