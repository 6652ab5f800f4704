"""OpenMMLab's registries hold what was registered: a sweep over modules alone would leave upstream's there.

A patched method needs nothing of this, since the registered class is the patched one.
"""

from __future__ import annotations

from ..engine import apply

apply.look_into("mmengine.registry.registry:Registry", "_module_dict")
apply.look_into("mmcv.utils.registry:Registry", "_module_dict")
