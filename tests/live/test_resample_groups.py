"""Which samples belong together, by real numpy flags: found once, and cheap to ask afterwards."""

from __future__ import annotations

import random
import tracemalloc
import weakref

import numpy as np
import pytest

from ddp_patches.runtime import resampling_groups
from ddp_patches.runtime.resampler import Chain


class DataSet:
    def __init__(self, flags, **attributes):
        self.flag = flags
        vars(self).update(attributes)


def groups(flags, setting="auto", **attributes):
    data_set = DataSet(np.array(flags), **attributes)
    return resampling_groups.groups_of(data_set, len(flags), setting)


@pytest.mark.parametrize(
    "flags, attributes, are_sequences",
    [
        ([0, 0, 1, 1, 2], {}, True),
        ([7, 7, 9, 30], {}, True),
        ([0, 0, 0, 1, 1], {}, None),  # aspect ratios of a sorted data set
        ([0, 0, 0, 1, 1], {"seq_mode": True}, True),
        ([0, 1, 0, 1, 2], {}, None),
        ([5, 5, 3, 3, 8], {"seq_mode": True}, True),
        ([0, 0, 0], {"seq_mode": True}, None),  # one group: nothing to stay in
    ],
)
def test_what_counts_as_sequences(flags, attributes, are_sequences):
    """``resample=auto``: independent samples are drawn from all."""
    found = groups(flags, **attributes)
    assert (found and found.are_sequences) is are_sequences
    assert groups(flags, "global", **attributes) is None


def test_groups_of_flags_in_any_order():
    """``group-then-global`` is for whoever wants aspect ratios kept, too."""
    generator = random.Random(1)
    flags = [generator.randrange(4) for _ in range(500)]
    found = groups(flags, "group-then-global")
    assert not found.are_sequences
    for index in range(500):
        members = found.members(index)
        same = [other for other in range(500) if flags[other] == flags[index]]
        assert [members.at(number) for number in range(members.size)] == same
        assert [other for other in range(500) if members.holds(other)] == same


def test_runs_over_more_than_one_chunk():
    flags = np.repeat(np.arange(70_000), 3)
    found = groups(flags)
    assert found.count == 70_000
    for run in (0, 21_844, 21_845, 21_846, 69_999):
        for index in range(3 * run, 3 * run + 3):
            members = found.members(index)
            assert (members.low, members.high) == (3 * run, 3 * run + 3)
            assert found.is_first(index) is (index == 3 * run)
        assert found.first_index(run) == 3 * run


@pytest.mark.parametrize("flags", [None, [0, 1, 2], np.zeros((3, 2)), np.arange(4)])
def test_flags_that_say_nothing(flags):
    assert resampling_groups.groups_of(DataSet(flags), 3, "auto") is None


def test_nothing_is_kept_for_a_data_set_that_is_gone():
    data_set = DataSet(np.arange(9))
    first = resampling_groups.groups_of(data_set, 9, "auto")
    assert resampling_groups.groups_of(data_set, 9, "auto") is first
    data_set.flag = np.arange(9) // 2
    assert resampling_groups.groups_of(data_set, 9, "auto").count == 5
    assert vars(data_set).keys() == {"flag"}
    flags = weakref.ref(data_set.flag)
    del data_set
    assert flags() is None


@pytest.mark.parametrize("kind", ["aspect ratios", "sequences"])
def test_a_chain_allocates_the_same_for_ten_thousand_and_ten_million(kind):
    """Upstream makes a list of the whole group at every draw."""
    peaks = {}
    for length in (10_000, 10_000_000):
        flags = np.arange(length) // 40 if kind == "sequences" else np.arange(length, dtype=np.uint8) % 2
        data_set = DataSet(flags)
        resampling_groups.groups_of(data_set, length, "auto")  # once in a process
        generator = random.Random(1)
        tracemalloc.start()
        for start in range(20):
            chain = Chain(length, start, resampling_groups.groups_of(data_set, length, "auto"), 2 * length)
            for _ in range(60):
                chain.draw(generator.randrange)
        peaks[length] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[10_000_000] < 2 * peaks[10_000]
    assert peaks[10_000_000] < 100_000
