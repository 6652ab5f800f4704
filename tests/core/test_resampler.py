"""Drawing another sample without a data set: no repeats, what it costs, bounds, and whose draw it is."""

from __future__ import annotations

import gc
import random
import sys
import threading
import weakref

import pytest

from ddp_patches.runtime import resampler, resampling_report
from ddp_patches.runtime.resampler import Chain, Deck, NoSample


def test_a_deck_gives_each_index_once_whatever_was_taken_out():
    generator = random.Random(1)
    for size in (1, 2, 7, 50):
        deck, seen = Deck(size), []
        for _ in range(size):
            if generator.random() < 0.3 and not deck.is_empty():
                wanted = generator.randrange(-1, size + 1)
                assert deck.take(wanted) is (0 <= wanted < size and wanted not in seen)
                seen += [wanted] if 0 <= wanted < size and wanted not in seen else []
        while not deck.is_empty():
            seen.append(deck.draw(generator.randrange))
        assert sorted(seen) == list(range(size))


def test_every_order_is_as_likely_as_the_others():
    """By going through all picks: 4 cards have 24 orders, each for one sequence of picks."""
    orders = set()
    for number in range(24):
        deck, rest = Deck(4), [number]

        def pick(size, rest=rest):
            rest[0], picked = divmod(rest[0], size)
            return picked

        orders.add(tuple(deck.draw(pick) for _ in range(4)))
    assert len(orders) == 24


def test_a_draw_costs_the_same_for_ten_thousand_and_ten_million():
    """Counted are the entries kept and the random numbers asked for, for 5,000 draws."""
    costs = []
    for size in (10_000, 10_000_000):
        picks = []
        generator = random.Random(2)

        def pick(limit, picks=picks, generator=generator):
            picks.append(limit)
            return generator.randrange(limit)

        chain = Chain(size, start=3)
        drawn = [chain.draw(pick) for _ in range(5000)]
        assert len(set(drawn)) == 5000 and 3 not in drawn
        costs.append((len(picks), chain._all.cells() <= 3 * 5001))
    assert costs == [(5000, True), (5000, True)]


def test_a_chain_starts_over_when_all_were_tried_and_ends_at_the_bound():
    generator = random.Random(3)
    chain = Chain(20, start=0, bound=45)
    drawn = [chain.draw(generator.randrange) for _ in range(45)]
    assert sorted(drawn[:19]) == list(range(1, 20))
    assert sorted(drawn[19:39]) == list(range(20))
    with pytest.raises(NoSample):
        chain.draw(generator.randrange)
    assert (chain.draws, chain.failed) == (45, True)


class Groups:
    """Runs of five."""

    count = 4

    def __init__(self, are_sequences):
        self.are_sequences = are_sequences

    def members(self, index):
        return Members(index - index % 5)

    def first_index(self, number):
        return 5 * number

    def is_first(self, index):
        return index % 5 == 0


class Members:
    size = 5

    def __init__(self, low):
        self.low = low

    def at(self, number):
        return self.low + number

    def holds(self, index):
        return self.low <= index < self.low + 5


def test_a_sequence_is_left_when_exhausted_for_the_first_frame_of_another():
    chain = Chain(20, start=7, groups=Groups(are_sequences=True))
    generator = random.Random(4)
    drawn, left = [], []
    for _ in range(19):
        drawn.append(chain.draw(generator.randrange))
        left.append(chain.has_left_home())
    assert sorted(drawn[:4]) == [5, 6, 8, 9]
    assert sorted(drawn[4:7]) == [0, 10, 15]
    assert sorted(drawn) == [index for index in range(20) if index != 7]
    assert left == [False] * 4 + [True] * 15


def test_a_group_that_is_no_sequence_is_left_for_any_sample():
    firsts = set()
    for seed in range(20):
        chain = Chain(20, start=7, groups=Groups(are_sequences=False))
        drawn = [chain.draw(random.Random(seed).randrange) for _ in range(5)]
        firsts.add(drawn[4])
    assert len(firsts - {0, 10, 15}) > 3


@pytest.mark.parametrize(
    "setting, length, came_through, bound",
    [
        ("auto", 3, False, 1000),
        ("auto", 28130, False, 56260),
        ("auto", 128, True, 10000),
        (7, 28130, False, 7),
        (7, 28130, True, 7),
    ],
)
def test_the_bound(setting, length, came_through, bound):
    assert resampler.bound_for(setting, length, came_through) == bound


def test_streams_differ_and_each_is_its_own_again():
    values = [500] * 50  # generators in the same state
    streams = {
        stream: tuple(resampler.spread(value, 1000, stream, number) for number, value in enumerate(values))
        for stream in (0, 1, 2, 1 << 32, (1 << 32) + 1)
    }
    assert len(set(streams.values())) == 5
    assert streams[0] == tuple(values)
    again = tuple(resampler.spread(value, 1000, 2, number) for number, value in enumerate(values))
    assert again == streams[2]
    counts = [0] * 10
    for value in range(10):
        counts[resampler.spread(value, 10, 77, 3)] += 1
    assert counts == [1] * 10  # still every index exactly once


class DataSet:
    """Its samples name the chain that drew for them."""

    length = 10

    def __init__(self):
        self.chains = []

    def another(self):
        call = resampler.running_call(sys._getframe(1), self)
        chain = resampler.chain_of(call, lambda: Chain(self.length, resampler.index_of(call, self.length)))
        chain.draw(random.randrange)
        return chain

    def load(self, index):
        return self.another()

    def __getitem__(self, index):
        first = self.load(index)
        assert self.load(index) is first
        if index == 1:
            assert self[2] == 3
        if index == 3:
            assert Wrapper(self)[2] == 2
        assert self.load(index) is first
        assert first.start == index
        self.chains.append(weakref.ref(first))
        return first.draws


class Wrapper:
    def __init__(self, data_set):
        self.data_set = data_set

    def __getitem__(self, index):
        assert resampler.running_call(sys._getframe(), self.data_set) is None or index == 2
        return self.data_set[index] - 1


@pytest.mark.parametrize("index", [0, 1, 3])
def test_a_chain_is_one_running_call(index):
    """Also where the data set is asked for another sample meanwhile, by itself or through a wrapper."""
    data_set = DataSet()
    assert data_set[index] == data_set[index] == 3
    assert Wrapper(data_set)[index] == 2


def test_a_chain_ends_with_its_call_and_holds_nothing_back():
    gc.disable()
    try:
        data_set = DataSet()
        data_set[0]
        assert [chain() for chain in data_set.chains] == [None]
        assert resampler.active_chain() is None
        assert set(vars(data_set)) == {"chains"}
        alive = weakref.ref(data_set)
        del data_set
        assert alive() is None
    finally:
        gc.enable()


def test_threads_have_chains_of_their_own():
    data_set = DataSet()
    failures = []

    def fetch():
        try:
            for _ in range(200):
                assert data_set[0] == 3
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize(
    "value, index", [(3, 3), (-1, 9), (10, None), (-11, None), ("3", None), (None, None)]
)
def test_what_is_an_index(value, index):
    assert resampler.as_index(value, 10) == index


def ended(start, draws, groups=None, seed=0):
    chain = Chain(20, start, groups)
    generator = random.Random(seed)
    for _ in range(draws):
        chain.draw(generator.randrange)
    return chain


def test_the_totals_count_frames_on_another_sequences_memory():
    tally = resampling_report.Tally()
    assert not tally.add(1, ended(7, 3))
    sequences = Groups(are_sequences=True)
    tally.add(1, ended(5, 2, sequences))  # stays
    assert tally.add(1, ended(6, 5, sequences))  # a first frame
    tally.add(1, ended(8, 9, sequences))  # none of the first frames was whole
    tally.add(1, ended(9, 2, sequences))  # one of its own after all, on another's memory
    tally.add(1, ended(12, 55, sequences))  # another one, in the third round
    assert tally.noteworthy == 4
    assert tally.text() == (
        "Empty samples replaced: 6, with 76 draws; those that took 50 draws or more: 1. "
        "Sequences without any sample: 2; frames of theirs that another sequence's replaced: 3, "
        "of these by a first frame: 1. Frames trained on another sequence's memory: 3."
    )


def test_lines_of_one_process_become_rare():
    """Promise 12: quiet. A data set of empty samples would print one for every fetch."""
    tally = resampling_report.Tally()
    assert [tally.may_say() for _ in range(6)] == [0, 0, 0, None, None, None]
    tally._began -= 61
    assert [tally.may_say(), tally.may_say()] == [3, None]


def test_workers_of_later_epochs_are_quiet():
    speaking = [number for number in range(1, 100) if resampling_report.speaks(number - 1)]
    assert speaking == [1, 2, 5, 10, 30, 60, 90]
