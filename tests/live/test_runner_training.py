"""A whole epoch on two ranks by the runners of mmengine and of mmcv 1.x alone, as CPU processes over gloo."""

from __future__ import annotations

import re
import sys

import pytest

from support import layers, ranks

pytestmark = pytest.mark.matrix
LIMIT_SECONDS = 280  # some 20 s on two free cores

NUMBERS = """
    import sys
    import torch

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 16
        def __getitem__(self, index):
            return SAMPLE

    class Line:
        def loss_of(self, inputs):
            return (self.layer(inputs) - 1).square().mean()
    """

MMENGINE = NUMBERS.replace("SAMPLE", '{"inputs": torch.full((2,), index / 16), "data_sample": index}') + """
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    class Model(Line, BaseModel):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
        def forward(self, inputs, *others, **more):
            return {"loss": self.loss_of(torch.stack(list(inputs)))}

    Runner(
        model=Model(),
        work_dir=sys.argv[1],
        train_dataloader=dict(
            batch_size=2, num_workers=0, dataset=Numbers(), sampler=dict(type="DefaultSampler")
        ),
        train_cfg=dict(by_epoch=True, max_epochs=1),
        optim_wrapper=dict(optimizer=dict(type="SGD", lr=0.1)),
        default_hooks=dict(logger=dict(type="LoggerHook", interval=1)),
        launcher="pytorch",
    ).train()
    """  # fmt: skip

MMCV = NUMBERS.replace("SAMPLE", "torch.full((2,), index / 16)") + """
    import logging
    from mmcv.parallel import MMDistributedDataParallel
    from mmcv.runner import EpochBasedRunner, init_dist

    class Model(Line, torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
        def train_step(self, inputs, optimizer):
            loss = self.loss_of(inputs)
            return {"loss": loss, "log_vars": {"loss": loss.item()}, "num_samples": len(inputs)}

    logging.basicConfig(level=logging.INFO)
    init_dist("pytorch")
    model = MMDistributedDataParallel(Model().cuda(), device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runner = EpochBasedRunner(
        model, optimizer=optimizer, work_dir=sys.argv[1], logger=logging.getLogger(), max_epochs=1
    )
    runner.register_training_hooks(
        lr_config=dict(policy="fixed"),
        optimizer_config=dict(grad_clip=None),
        checkpoint_config=dict(interval=1),
        log_config=dict(interval=1, hooks=[dict(type="TextLoggerHook")]),
    )
    sampler = torch.utils.data.DistributedSampler(Numbers())
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, sampler=sampler, num_workers=0)
    runner.run([loader], [("train", 1)])
    """  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "program", "line"),
    [
        ("mmengine", MMENGINE, r"Epoch\(train\) +\[1\]\[4/4\] .* loss: 0\.\d"),
        ("mmengine/0.1.0", MMENGINE, r"Epoch\(train\) +\[1\]\[4/4\] .* loss: 0\.\d"),
        ("mmcv", MMCV, r"Epoch \[1\]\[1/4\]\s.* loss: \d\.\d"),
        # Not mmcv 1.3.8: its DistributedDataParallel is made of parts that this torch no longer has.
    ],
)
def test_an_epoch(processes, layer, program, line):
    """Each rank has half of the samples."""
    command = ranks.torchrun_command(
        2, ranks.script(processes.folder, program, "train.py"), processes.folder / "runs"
    )
    environ = layers.openmmlab_environment(processes.folder, layer)
    ours = [sys.executable, "-m", "ddp_patches", "rehearse", "--"]
    result = processes.run([*ours, *command], environ, limit=LIMIT_SECONDS).check()
    assert not result.leftovers, str(result)
    shown = result.stdout + result.stderr
    assert re.search(line, shown), shown
    assert re.search(r"REHEARSAL ddp_patches \S+ is on for \d of 2 ranks .*, 0 failed;", shown), shown
    assert (processes.folder / "runs" / "epoch_1.pth").is_file()
