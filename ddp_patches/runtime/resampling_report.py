"""What people are told about empty samples: a line for a long chain, the error at the bound, the totals."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, Optional, Set

from .. import console
from .progress import minute_of_line
from .resampler import LONG_DRAWS, Chain

_FREE_LINES = 3  # lines of one process; later ones at the minutes of every long wait
_SHOWN_LOSSES = 8
_SPEAKING_GENERATIONS = (1, 2, 5, 10)
_THEN_EVERY_GENERATION = 30


def name_of(data_set: Any, chain: Chain) -> str:
    """``CocoDataset (118,287 samples)``."""
    return "%s (%s samples)" % (type(data_set).__qualname__, format(chain.length, ","))


def losses(chain: Chain) -> str:
    """Which transform turned how many samples into None, the most first; ends with a full stop."""
    known = sum(chain.losses.values())
    if not known:
        return "Which transform dropped them is not known: the data set has no Compose as its pipeline."
    parts = ["%s: %d" % (loss, count) for loss, count in _most(chain.losses)]
    return "Turned into None, of %d that were looked at, by %s." % (known, "; ".join(parts))


def indices(chain: Chain) -> str:
    """The first indices to look at; ends with a full stop."""
    return "The first indices to look at: %s." % ", ".join(str(index) for index in chain.shown)


def long_line(data_set: Any, chain: Chain, where: str, bound_name: str) -> str:
    """The line after 50 draws."""
    bound = "" if chain.bound is None else " It goes on, at most to draw %d (%s)." % (chain.bound, bound_name)
    text = "%s: %d draws for one sample, and all came out empty%s. %s %s%s"
    return text % (name_of(data_set, chain), chain.draws, where, losses(chain), indices(chain), bound)


def error_text(data_set: Any, chain: Chain, where: str, bound_name: str) -> str:
    """The message at the bound."""
    return "%s: %d draws for one sample, and all came out empty [%s%s]. %s %s The bound is %s." % (
        name_of(data_set, chain),
        chain.draws,
        console.who(),
        where,
        losses(chain),
        indices(chain),
        bound_name,
    )


class Tally:
    """What this process has seen so far."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.samples = 0
        self.draws = 0
        self.long = 0
        self.noteworthy = 0
        self.by_first_frames = 0
        self.by_other_frames = 0
        self.after_leaving = 0
        self.left: Set[Any] = set()  # the sequences of which a frame was replaced by another one's
        self._lines = 0
        self._unsaid = 0
        self._began = 0.0

    def add(self, data_set_id: int, chain: Chain) -> bool:
        """Count a chain whose ``__getitem__`` has ended with a sample.

        Whether it is more than a few draws, as an ordinary random crop makes them.
        """
        self.samples += 1
        self.draws += chain.draws
        is_long = chain.draws >= LONG_DRAWS
        self.long += is_long
        is_noteworthy = self._add_frame(data_set_id, chain) or is_long
        self.noteworthy += is_noteworthy
        return is_noteworthy

    def _add_frame(self, data_set_id: int, chain: Chain) -> bool:
        """Count what became of a sequence; whether it was left, now or before."""
        groups, home = chain.groups, chain.home
        if groups is None or home is None or not groups.are_sequences or chain.last is None:
            return False
        key = (data_set_id, home.low)
        if not chain.has_left_home():
            # Its memory is that of the frame which stood in for the one before.
            self.after_leaving += key in self.left
            return key in self.left
        self.left.add(key)
        if groups.is_first(chain.last):
            self.by_first_frames += 1
        else:
            self.by_other_frames += 1
        return True

    def text(self) -> str:
        """The totals, one to three sentences."""
        text = "Empty samples replaced: %d, with %d draws; those that took %d draws or more: %d." % (
            self.samples,
            self.draws,
            LONG_DRAWS,
            self.long,
        )
        if self.left:
            text += (
                " Sequences without any sample: %d; frames of theirs that another sequence's replaced: %d, "
                "of these by a first frame: %d. Frames trained on another sequence's memory: %d."
            ) % (
                len(self.left),
                self.by_first_frames + self.by_other_frames,
                self.by_first_frames,
                self.by_other_frames + self.after_leaving,
            )
        return text

    def may_say(self) -> Optional[int]:
        """None if a line would be one too many now, else how many were left out since the last one."""
        now = time.monotonic()
        if not self._lines:
            self._began = now
        late = self._lines - _FREE_LINES
        if late >= 0 and now - self._began < 60 * minute_of_line(late):
            self._unsaid += 1
            return None
        self._lines += 1
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid


def speaks(generation: int) -> bool:
    """Whether the workers of a generation (an epoch's, from 0) print anything: the 1st, 2nd, 5th and 10th,
    then every 30th. Each begins anew, and would say in every epoch what was said in the first one.
    """
    number = generation + 1
    return number in _SPEAKING_GENERATIONS or number % _THEN_EVERY_GENERATION == 0


_tallies: Dict[str, Tally] = {}


def tally(patch_id: str, when_made: Callable[[], None]) -> Tally:
    """This process's: a forked worker begins its own, and ``when_made`` is called for it."""
    found = _tallies.get(patch_id)
    if found is None or found.pid != os.getpid():
        found = _tallies[patch_id] = Tally()
        when_made()
    return found


def _most(counts: Dict[str, int]) -> Any:
    return sorted(counts.items(), key=lambda item: -item[1])[:_SHOWN_LOSSES]
