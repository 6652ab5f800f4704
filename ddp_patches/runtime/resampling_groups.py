"""The groups of a data set, from its flags: the frames of one sequence, the images of one aspect ratio."""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, NamedTuple, Optional

_CHUNK = 65536  # flags looked at in one go: memory does not grow with the data set
_MOST_RUNS_OF_ASPECT_RATIOS = 2


class Members(NamedTuple):
    """The indices of one group: ``order[low:high]``, or ``low`` to ``high`` themselves without ``order``."""

    low: int
    high: int
    order: Any
    flags: Any

    @property
    def size(self) -> int:
        """How many there are."""
        return self.high - self.low

    def at(self, number: int) -> int:
        """The index of the member with this number, from 0."""
        place = self.low + number
        return place if self.order is None else int(self.order[place])

    def holds(self, index: int) -> bool:
        """Whether an index is one of them."""
        if self.order is None:
            return self.low <= index < self.high
        return bool(self.flags[index] == self.flags[self.at(0)])


class Groups:
    """All groups of a data set. Made once in a process: it goes through all the flags.

    ``starts``: where a run of equal flags begins; ``are_sequences``: each run is one sequence, and its first
    frame is marked as one by the change of the flag.
    """

    def __init__(self, flags: Any, starts: Any, are_sequences: bool) -> None:
        import numpy

        self._flags = flags
        self._starts = starts
        self.are_sequences = are_sequences
        self.count = len(starts)
        self._order = None
        if len(numpy.unique(flags[starts])) < self.count:  # a group is not one run
            self._order = numpy.argsort(flags, kind="stable")
            self._sorted = flags[self._order]

    def first_index(self, number: int) -> int:
        """The first index of a run, by the run's number."""
        return int(self._starts[number])

    def is_first(self, index: int) -> bool:
        """Whether a run begins at ``index``."""
        run = int(self._starts.searchsorted(index))
        return run < self.count and int(self._starts[run]) == index

    def members(self, index: int) -> Members:
        """The group that ``index`` belongs to."""
        if self._order is None:
            run = int(self._starts.searchsorted(index, "right"))
            high = int(self._starts[run]) if run < self.count else len(self._flags)
            return Members(int(self._starts[run - 1]), high, None, self._flags)
        flag = self._flags[index]
        low, high = (int(self._sorted.searchsorted(flag, side)) for side in ("left", "right"))
        return Members(low, high, self._order, self._flags)


def groups_of(data_set: Any, length: int, setting: str) -> Optional[Groups]:
    """The groups that a draw has to respect, None to draw from all samples.

    ``setting``: ``resample``. Groups matter to data sets of sequences: those with ``seq_mode``, or whose
    flags never decrease and have more than two runs, which flags for aspect ratios have not.
    """
    flags = getattr(data_set, "flag", None)
    if setting == "global" or flags is None or not hasattr(flags, "shape") or len(flags) != length:
        return None
    has_mode = bool(getattr(data_set, "seq_mode", False))
    known = _known.get(id(data_set))
    if known is not None and known.reference() is data_set and known.fits(flags, setting, has_mode):
        return known.groups
    found = _look(flags, has_mode, setting == "auto")
    _keep(data_set, _Known(None, flags, setting, has_mode, found))
    return found


class _Known(NamedTuple):
    reference: Any
    flags: Any
    setting: str
    has_mode: bool
    groups: Optional[Groups]

    def fits(self, flags: Any, setting: str, has_mode: bool) -> bool:
        return self.flags is flags and (self.setting, self.has_mode) == (setting, has_mode)


_known: Dict[int, _Known] = {}  # by the identity of the data set, on which nothing is stored; a fork keeps it


def _keep(data_set: Any, known: _Known) -> None:
    key = id(data_set)
    try:
        _known[key] = known._replace(reference=weakref.ref(data_set, lambda _: _known.pop(key, None)))
    except TypeError:  # no weak reference to it: looked through again for each chain
        pass


def _look(flags: Any, has_mode: bool, only_sequences: bool) -> Optional[Groups]:
    import numpy

    flags = numpy.asarray(flags)
    if flags.ndim != 1 or not len(flags):
        return None
    starts: List[Any] = [numpy.zeros(1, dtype=numpy.int64)]
    increase = True
    for low in range(0, len(flags) - 1, _CHUNK):
        before, after = flags[low : low + _CHUNK][: len(flags) - 1 - low], flags[low + 1 : low + 1 + _CHUNK]
        increase = increase and not bool((after < before).any())
        if only_sequences and not has_mode and not increase:
            return None
        starts.append(numpy.flatnonzero(after != before) + low + 1)
    runs = numpy.concatenate(starts)
    are_sequences = has_mode or (increase and len(runs) > _MOST_RUNS_OF_ASPECT_RATIOS)
    if len(runs) == 1 or (only_sequences and not are_sequences):
        return None
    return Groups(flags, runs, are_sequences)
