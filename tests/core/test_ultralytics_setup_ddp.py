"""The decisions of ``ultralytics.setup_ddp``: which GPU, and how many ranks. Field report 12: a wrong index
is "invalid device ordinal" on the second node, or a GPU that belongs to somebody else."""

from __future__ import annotations

import pytest

from ddp_patches.patches.ultralytics._decisions import device_index, job_world_size, requested_indices


@pytest.mark.parametrize(
    ("device", "indices"),
    [
        ("0,1", [0, 1]),
        ("4,5", [4, 5]),
        ("cuda:0,1", [0, 1]),
        ("cuda:0, cuda:1", [0, 1]),
        ([0, 1], [0, 1]),
        ((2, 3), [2, 3]),
        (["0", "1"], [0, 1]),
        (0, [0]),
        ("0,,1", [0, 1]),
        ("", []),
        (None, []),
        ("cpu", []),
        ("cuda", []),
        ("-1,-1", []),  # chosen at start-up, by memory: the numbers are not in the text
        ("npu:0,1", []),
    ],
)
def test_device_setting_is_read_in_every_form_that_ultralytics_takes(device, indices):
    assert requested_indices(device) == indices


# asked, local rank, device, CUDA_VISIBLE_DEVICES, devices that CUDA shows -> index
TABLE = [
    # One node: upstream is right, whatever else is known.
    (0, 0, "0,1", "0,1", 2, 0),
    (1, 1, "0,1", "0,1", 2, 1),
    (1, 1, "4,5", "4,5", 2, 1),
    (1, 1, None, None, 8, 1),
    (1, None, "0,1", "0,1", 2, 1),  # no launcher
    # The second of two nodes with two GPUs each.
    (2, 0, "0,1", "0,1", 2, 0),
    (3, 1, "0,1", "0,1", 2, 1),
    (3, 1, [0, 1], "0,1", 2, 1),
    (3, 1, "cuda:0,1", "0,1", 2, 1),
    (3, 1, "", None, 2, 1),
    (3, 1, None, "6,7", 2, 1),
    # GPUs 4 and 5 of eight. CUDA_VISIBLE_DEVICES took effect: they are 0 and 1 for CUDA, and an index
    # that is taken from the list again would be one too many (Lightning 3791).
    (2, 0, "4,5", "4,5", 2, 0),
    (3, 1, "4,5", "4,5", 2, 1),
    (5, 1, "4,5,6,7", "4,5,6,7", 4, 1),
    (3, 1, "1,0", "1,0", 2, 1),
    # The same, but CUDA had been started before: it still shows all eight.
    (2, 0, "4,5", "4,5", 8, 4),
    (3, 1, "4,5", "4,5", 8, 5),
    # The variable was not written (a trainer of the user's own): the list counts as CUDA counts.
    (3, 1, "2,3", None, 4, 3),
    (3, 1, "1,0", None, 2, 0),
    # Numbers of GPUs that this node does not show: their order is all that is left.
    (3, 1, "6,7", "0,1,2,3", 4, 1),
    (3, 1, "0", "0", 2, 1),  # more ranks here than entries
    # Each rank is shown its own GPU only (srun --gpus-per-task=1).
    (3, 1, "", "1", 1, 0),
    # More ranks than GPUs: upstream's own error is the clearest.
    (5, 2, "0,1", "0,1", 2, 5),
    # How many devices there are is unknown.
    (3, 1, "0,1", "0,1", 0, 1),
]


@pytest.mark.parametrize(("asked", "local_rank", "device", "visible", "count", "index"), TABLE)
def test_device_follows_local_rank_and_device_string(asked, local_rank, device, visible, count, index):
    assert device_index(asked, local_rank, device, visible, count) == index


def test_two_ranks_of_a_node_never_share_a_device():
    for device, visible, count in [("0,1", "0,1", 2), ("4,5", "4,5", 8), ("4,5", "4,5", 2), (None, None, 2)]:
        indices = {device_index(2 + local, local, device, visible, count) for local in (0, 1)}
        assert len(indices) == 2, (device, visible, count)


@pytest.mark.parametrize(
    ("named", "world", "here", "ranks"),
    [
        (2, "2", "2", 2),  # one node
        (2, "4", "2", 4),  # two nodes, device="0,1" on each
        (4, "4", "2", 4),  # a user who has counted all nodes' devices
        (2, "4", "4", 2),  # one node, more ranks than devices: as upstream
        (2, "3", "2", 2),  # nodes of different size: nobody can tell what the others count
        (1, "2", "1", 1),  # one device: upstream trains without a group
        (0, "4", "2", 0),  # CPU
        (2, None, None, 2),  # no launcher
        (2, "4", None, 2),
        (2, "many", "2", 2),
    ],
)
def test_ranks_of_all_nodes_are_counted_only_where_the_launcher_started_them(named, world, here, ranks):
    environment = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": here}
    known = {name: value for name, value in environment.items() if value is not None}
    assert job_world_size(named, known) == ranks
