"""Where a thread stands, told from made-up stacks in the form of torch's own (innermost place first)."""

from __future__ import annotations

import pytest

from ddp_patches.runtime.stall import standing

C10D = "/x/site-packages/torch/distributed/distributed_c10d.py"
WRAPPER = "/x/site-packages/torch/distributed/c10d_logger.py"
DDP = "/x/site-packages/torch/nn/parallel/distributed.py"
MODULE = "/x/site-packages/torch/nn/modules/module.py"
AUTOGRAD = "/x/site-packages/torch/autograd/__init__.py"
LOADER = "/x/site-packages/torch/utils/data/dataloader.py"
HEAD = "/home/me/heads/focal.py"
TRAIN = "/home/me/train.py"
USER = [(TRAIN, 40, "main")]
CALLED = "called at me/train.py:40 in main"


@pytest.mark.parametrize(
    ("stack", "sentence"),
    [
        (
            [(C10D, 1, "all_reduce"), (WRAPPER, 2, "wrapper"), (HEAD, 338, "loss")],
            "in all_reduce, called at heads/focal.py:338 in loss",
        ),
        ([(C10D, 1, "barrier")], "in barrier, called at me/train.py:40 in main"),
        ([(DDP, 1, "_ddp_init_helper"), (DDP, 2, "__init__")], "in DDP construction, " + CALLED),
        ([(DDP, 1, "_pre_forward"), (DDP, 2, "forward")], "in DDP forward, " + CALLED),
        # The user's model is at work inside DDP's forward: it waits for nobody.
        ([(HEAD, 7, "forward"), (MODULE, 2, "_call"), (DDP, 3, "forward")], "at heads/focal.py:7 in forward"),
        ([(AUTOGRAD, 1, "backward")], "in DDP backward, called at me/train.py:40 in main"),
        ([(LOADER, 1, "_try_get_data")], "waiting for its DataLoader at me/train.py:40 in main"),
        # Without workers the data set is read by the rank itself.
        ([(HEAD, 9, "__getitem__"), (LOADER, 1, "_next_data")], "at heads/focal.py:9 in __getitem__"),
        ([("/x/ddp_patches/runtime/waiting.py", 1, "wait")],
         "waiting for the leader of a rank-0-first block at me/train.py:40 in main"),
        ([("/x/ddp_patches/runtime/shared_folder.py", 1, "_wait_for")],
         "in collect_results_cpu, called at me/train.py:40 in main"),
        ([("/usr/lib/python3.11/threading.py", 1, "_shutdown")], "at the end of its program"),
        ([], "at me/train.py:40 in main"),
    ],
)  # fmt: skip
def test_what_a_stack_says(stack, sentence):
    assert standing.classify([*stack, *USER]).sentence() == sentence


def test_an_empty_stack():
    assert standing.classify([]).sentence() == "at an unknown place"
