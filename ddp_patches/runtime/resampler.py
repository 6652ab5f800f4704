"""Which sample a data set tries next when one came out empty: a draw without repeats, and with a bound.

A *chain* is one running ``__getitem__`` that draws again and again. It lives among the locals of that
call's frame, under a name that no code can spell. So it belongs to one call in one thread, ends at the
moment the call does, and nothing is stored on the data set, which is pickled to workers. Kept elsewhere,
by the frame's identity, it would have to hold the frame, and with it the sample and every frame outside,
a whole trainer perhaps, until the next draw.
"""

from __future__ import annotations

import operator
import threading
import weakref
from types import FrameType
from typing import Any, Callable, Dict, List, Optional, Tuple

from .resampling_groups import Groups, Members

LONG_DRAWS = 50  # a chain of so many is worth a line
LEAST_BOUND = 1000
_SHOWN_INDICES = 10
_NAME = "<ddp_patches chain>"
_METHOD = "__getitem__"

Pick = Callable[[int], int]  # a random integer from 0 to its argument, which is excluded


class NoSample(RuntimeError):
    """As many draws as are allowed for one sample, and all came out empty."""


class Deck:
    """Indices from 0 to ``size``, drawn at random without repeats.

    A draw takes the same time for every size, and memory grows with the draws: only the places whose
    index is no longer their own number are written down (Fisher and Yates' shuffle, done as far as needed).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0
        self._at: Dict[int, int] = {}  # index by place
        self._place: Dict[int, int] = {}  # place by index

    def draw(self, pick: Pick) -> int:
        """One of the indices that are left, each as likely as the others. There must be one."""
        index = self._index_at(self.taken + pick(self.size - self.taken))
        self.take(index)
        return index

    def take(self, index: int) -> bool:
        """Take this one out; False if it was taken before or never there."""
        place = self._place.get(index, index)
        if not self.taken <= place < self.size:
            return False
        top = self.taken
        moved = self._index_at(top)
        if place != top:
            self._at[place] = moved
            self._place[moved] = place
        self._at.pop(top, None)
        self._place[index] = top
        self.taken += 1
        return True

    def is_empty(self) -> bool:
        """Whether all have been taken."""
        return self.taken == self.size

    def cells(self) -> int:
        """How many entries are kept: what its memory grows with."""
        return len(self._at) + len(self._place)

    def _index_at(self, place: int) -> int:
        return self._at.get(place, place)


class Chain:
    """The draws of one running ``__getitem__``.

    Args:
        length: of the data set, in samples.
        start: the index that was asked for, None if it is not known; it counts as tried.
        groups: stay among the group of ``start`` until all of it has been tried; None: draw from all.
        bound: how many draws may come out empty, None for no bound.
        when_over: called with the chain when the ``__getitem__`` has ended.
    """

    def __init__(
        self,
        length: int,
        start: Optional[int] = None,
        groups: Optional[Groups] = None,
        bound: Optional[int] = None,
        when_over: Optional[Callable[[Chain], None]] = None,
    ) -> None:
        self.length = length
        self.start = start
        self.bound = bound
        self.draws = 0
        self.last = start
        self.failed = False
        self.shown = [] if start is None else [start]
        self.groups = groups
        self.home: Optional[Members] = None
        self.losses: Dict[str, int] = {}
        self.pipeline: Any = None  # the data set's, while its transforms are being watched
        self._loss: Optional[str] = None
        self._when_over = when_over
        if groups is not None and start is not None:
            self.home = groups.members(start)
        self._shuffle()
        if start is not None:
            self._all.take(start)

    def __del__(self) -> None:
        if self._when_over is not None and self.draws:
            self._when_over(self)

    def _shuffle(self) -> None:
        self._all = Deck(self.length)
        self._first_choices: List[Tuple[Deck, Callable[[int], int]]] = []
        if self.home is not None and self.groups is not None:
            self._first_choices.append((Deck(self.home.size), self.home.at))
            if self.groups.are_sequences:
                self._first_choices.append((Deck(self.groups.count), self.groups.first_index))

    def draw(self, pick: Pick) -> int:
        """The next index to try. None is repeated until each has been tried once; then it starts over.

        It starts over because a random pipeline, a crop say, may let a sample through at the next try.
        Raises NoSample, without a message, when the bound is reached.
        """
        self._note_loss()
        if self.bound is not None and self.draws >= self.bound:
            self.failed = True
            raise NoSample
        self.draws += 1
        self.last = self._next(pick)
        if len(self.shown) < _SHOWN_INDICES and self.last not in self.shown:
            self.shown.append(self.last)
        return self.last

    def _next(self, pick: Pick) -> int:
        if self._all.is_empty():
            self._shuffle()
        for deck, index_of in self._first_choices:
            # At most one of a deck has been taken otherwise: the start, or the first of its sequence.
            while not deck.is_empty():
                index = index_of(deck.draw(pick))
                if self._all.take(index):
                    return index
        return self._all.draw(pick)

    def has_left_home(self) -> bool:
        """Whether the sample that was drawn last belongs to another group than the one asked for."""
        return self.home is not None and self.last is not None and not self.home.holds(self.last)

    def note(self, loss: Optional[str]) -> None:
        """What became of the sample that is being tried; None: it is whole as far as is known."""
        self._loss = loss

    def _note_loss(self) -> None:
        if self._loss is not None:
            self.losses[self._loss] = self.losses.get(self._loss, 0) + 1
            self._loss = None


def running_call(frame: Optional[FrameType], data_set: Any) -> Optional[FrameType]:
    """The nearest ``__getitem__`` of ``data_set`` from ``frame`` outwards, None if there is none.

    Wrappers have a ``__getitem__`` of their own, with another self. One data set may be met several
    times, where its pipeline fetches other samples: the nearest is the one that draws.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name == _METHOD and frame.f_locals.get((*code.co_varnames, "")[0]) is data_set:
            return frame
        frame = frame.f_back
    return None


def index_of(call: FrameType, length: int) -> Optional[int]:
    """The index that a ``__getitem__`` has been asked for, or is at; None if it cannot be known."""
    code = call.f_code
    if code.co_argcount < 2:
        return None
    return as_index(call.f_locals.get(code.co_varnames[1]), length)


def as_index(value: Any, length: int) -> Optional[int]:
    """A number from 0 to ``length`` for whatever a data set takes as an index, also negative ones."""
    try:
        index = operator.index(value)
    except TypeError:
        return None
    if index < 0:
        index += length
    return index if 0 <= index < length else None


_active = threading.local()


def chain_of(call: FrameType, make: Callable[[], Chain]) -> Chain:
    """The chain of a running ``__getitem__``, made at its first draw."""
    chain = call.f_locals.get(_NAME)
    if chain is None:
        chain = call.f_locals[_NAME] = make()
    _active.chain = weakref.ref(chain)
    return chain


def active_chain() -> Optional[Chain]:
    """The chain of this thread that drew last, while its ``__getitem__`` runs."""
    reference = getattr(_active, "chain", None)
    return None if reference is None else reference()


def bound_for(setting: Any, length: int, came_through: bool) -> int:
    """How many draws for one sample may come out empty.

    Args:
        setting: ``max_resamples``.
        came_through: whether an earlier chain of the data set has found a sample. A pipeline that drops
            99 of 100 at random exceeds 1000 draws in one of 25,000 fetches; upstream finishes that job.
    """
    if setting != "auto":
        return int(setting)
    return max(LEAST_BOUND, 2 * length) * (10 if came_through else 1)


def spread(value: int, size: int, stream: int, number: int) -> int:
    """``value``, drawn from 0 to ``size``, moved by an amount that differs between streams.

    Processes whose generators are in the same state, as those of forked workers and of ranks with one
    seed may be, then draw different indices, and each draws the same in every run. Stream 0 is not moved.
    """
    if not stream:
        return value
    mixed = (stream * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (value + (mixed ^ (mixed >> 31))) % size
