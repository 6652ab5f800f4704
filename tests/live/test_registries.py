"""OpenMMLab's registries hand out what is patched, and upstream's again after disable()."""

from __future__ import annotations

import sys

import pytest

from support import environment, layers, made_up, ranks

PLUGIN = """
    try:
        from mmengine.registry import Registry
    except ImportError:
        from mmcv.utils import Registry

    __version__ = "1.0"
    ROOT = Registry("root", scope="root")
    CHILD = Registry("child", parent=ROOT, scope="child")

    def collate(batch):
        return "upstream's " + batch

    @CHILD.register_module()
    class Data:
        def draw(self):
            return "upstream's draw"

    CHILD._register_module(collate, "collate")
    """

PROGRAM = """
    import json
    import ddp_patches, plugin, torch
    from ddp_patches import patch

    PATCH = patch("plugin.both", package="plugin", summary="")

    @PATCH.replaces("plugin:collate", parameters=("batch",))
    def collate(original):
        def replacement(batch):
            return "ours around " + original(batch)
        return replacement

    @PATCH.replaces("plugin:Data.draw", parameters=())
    def draw(original):
        def replacement(self):
            return "ours around " + original(self)
        return replacement

    def found():
        registered = [plugin.CHILD.get("collate"), plugin.ROOT.get("child.collate")]
        return [each("batch") for each in registered] + [plugin.ROOT.build({"type": "child.Data"}).draw()]

    before = plugin.CHILD.get("collate")
    answers = [found()]
    ddp_patches.enable()
    answers.append(found())
    ddp_patches.disable()
    answers.append(found())
    print(json.dumps({"answers": answers, "restored": plugin.CHILD.get("collate") is before}))
    """


@pytest.mark.parametrize("layer", ["mmdet/3.3.0", "mmdet/2.28.2"])
def test_a_registered_function_and_a_registered_class(processes, tmp_path, layer):
    """Promise 4, on the real Registry of mmengine and of mmcv 1.x, asked through child and parent."""
    made_up.write_files(tmp_path, {"plugin.py": PLUGIN})
    environ = environment.clean(tmp_path, tmp_path, environment.CPU_VISION, layers.layer(layer))
    answer = processes.run([sys.executable, ranks.script(tmp_path, PROGRAM)], environ, 100).check().answer
    upstreams = ["upstream's batch", "upstream's batch", "upstream's draw"]
    assert answer["answers"] == [upstreams, ["ours around " + each for each in upstreams], upstreams]
    assert answer["restored"] is True
