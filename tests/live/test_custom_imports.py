"""The door for OpenMMLab: one line in a configuration file, read by the real Config of mmengine and mmcv."""

from __future__ import annotations

import json
import sys

import pytest

from support import environment, layers

READ = """
import json, os, subprocess, sys
from {module} import Config

Config.fromfile(sys.argv[1])
import torch.distributed as dist

look = "import torch.distributed as d; print(getattr(d.barrier, '__ddp_patches__', None))"
child = subprocess.run([sys.executable, "-c", look], stdout=subprocess.PIPE, universal_newlines=True)
print(json.dumps([getattr(dist.barrier, "__ddp_patches__", None), child.stdout.strip()]))
"""


@pytest.mark.parametrize("line", ["custom_imports = dict(imports=['ddp_patches.auto'])", ""])
@pytest.mark.parametrize(("layer", "module"), [("mmengine", "mmengine.config"), ("mmcv", "mmcv")])
def test_a_line_in_the_configuration_arms_process_and_children(processes, tmp_path, layer, module, line):
    """Doors: custom_imports. Without the line nothing is patched, so the test can fail."""
    configuration = tmp_path / "configuration.py"
    configuration.write_text("model = dict(type='none')\n" + line + "\n")
    clean = environment.clean(tmp_path, layers.layer(layer))
    result = processes.run([sys.executable, "-c", READ.format(module=module), configuration], clean).check()
    expected = "torch.barrier_device_ids" if line else None
    assert json.loads(result.stdout.splitlines()[-1]) == [expected, str(expected)]
