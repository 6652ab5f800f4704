"""What the resampling patches of mmdet, mmdet3d and mmengine share: all but the target.

Draws come from numpy's global generator, as upstream's do, and none is made while no sample is empty: a
seeded run repeats, and a run without empty samples is upstream's. Loader workers that upstream has seeded
(or torch, which seeds numpy in its workers since 1.9) draw differently as they are. Generators in the same
state remain where a process was forked without either, and with one seed for all ranks. So what is drawn
is moved by an amount made of the rank and the worker's number, which touches no generator.

Which transform turned a sample into None is learned only while a chain of draws runs, by having upstream's
own loop go through the same transforms one by one, each noted. The first sample of a chain is therefore not
looked at: running its pipeline again would change the random numbers, or whatever else a pipeline touches.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from types import FrameType
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from .. import console, settings
from ..engine import ledger
from ..runtime import identity, resampler, resampling_groups, resampling_report
from ..runtime.resampler import Chain, NoSample

_DROPPED_AFTER = "the data set itself, after its pipeline"

# How many draws may come out empty by upstream's own count, and how that is called; None if it has no count.
OwnBound = Callable[[Any, FrameType], Optional[Tuple[int, str]]]
Drawn = Union[int, NoSample, None]


def another(
    patch_id: str,
    data_set: Any,
    frame: FrameType,
    index: Any = None,
    own_bound: Optional[OwnBound] = None,
) -> Optional[int]:
    """The index to try next, None if upstream has to draw it since ours failed.

    ``frame``: of the caller of ``_rand_another``; ``index``: what it was given. Raises NoSample at the bound.
    """
    drawn = ledger.attempt(
        patch_id, functools.partial(_draw, patch_id, data_set, frame, index, own_bound), None
    )
    if isinstance(drawn, NoSample):
        try:
            raise drawn
        finally:
            del drawn  # or error and frame would hold each other, and the sample with them
    return drawn


def by_index(patch_id: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """``_rand_another(idx)``: an index of the data set, as numpy's integer; raises NoSample at the bound."""
    import numpy

    def replacement(self: Any, idx: Any, *more: Any, **named: Any) -> Any:
        if more or named:  # which no release known has
            return original(self, idx, *more, **named)
        drawn = another(patch_id, self, sys._getframe(1), idx)
        return original(self, idx) if drawn is None else numpy.int64(drawn)

    return replacement


def compose(patch_id: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A pipeline's call that, while a chain of draws runs, notes which transform returned None."""

    def replacement(self: Any, data: Any, *more: Any, **named: Any) -> Any:
        chain = resampler.active_chain()
        if more or named or chain is None or chain.pipeline is not self:
            return original(self, data, *more, **named)
        watched = ledger.attempt(patch_id, functools.partial(_Watched, self, chain), None)
        if watched is None:
            return original(self, data)
        data = original(watched, data)
        if data is not None:
            # What is drawn for nevertheless, the data set has dropped: no object is left, say.
            chain.note(_DROPPED_AFTER)
        return data

    return replacement


class _Watched:
    """Stands in for a Compose while its loop runs: the same transforms, each noted when it returns None."""

    def __init__(self, inner: Any, chain: Chain) -> None:
        transforms = list(inner.transforms)
        self._inner = inner
        self.transforms: List[Callable[..., Any]] = [
            _noting(transform, "%s (step %d of %d)" % (_name(transform), step, len(transforms)), chain)
            for step, transform in enumerate(transforms, 1)
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _noting(transform: Callable[..., Any], name: str, chain: Chain) -> Callable[..., Any]:
    def run(*args: Any, **keywords: Any) -> Any:
        data = transform(*args, **keywords)
        if data is None:
            chain.note(name)
        return data

    return run


def _name(transform: Any) -> str:
    return getattr(transform, "__qualname__", type(transform).__qualname__)


def _draw(patch_id: str, data_set: Any, frame: FrameType, index: Any, own_bound: Optional[OwnBound]) -> Drawn:
    length = len(data_set)
    call = resampler.running_call(frame, data_set)
    if call is None:
        # Nobody to say when a chain ends, and perhaps a method that wants many indices: one draw, no bound.
        return _begin(patch_id, data_set, length, resampler.as_index(index, length), None).draw(_pick(0))
    own = None if own_bound is None else own_bound(data_set, call)
    bound_name = "the setting max_resamples" if own is None else own[1]

    def make() -> Chain:
        start = resampler.as_index(index, length)
        if start is None:
            start = resampler.index_of(call, length)
        if own is not None:
            bound = own[0]
        else:
            wanted = settings.current().max_resamples
            bound = resampler.bound_for(wanted, length, _has_come_through(data_set))
        return _begin(patch_id, data_set, length, start, bound)

    chain = resampler.chain_of(call, make)
    chain.pipeline = getattr(data_set, "pipeline", None)
    try:
        drawn = chain.draw(_pick(chain.draws))
    except NoSample:
        text = resampling_report.error_text(data_set, chain, _worker_text(), bound_name)
        return NoSample(text)
    if chain.draws == resampler.LONG_DRAWS:
        _say(patch_id, lambda: resampling_report.long_line(data_set, chain, _worker_text(), bound_name))
    return drawn


def _begin(patch_id: str, data_set: Any, length: int, start: Optional[int], bound: Optional[int]) -> Chain:
    groups = resampling_groups.groups_of(data_set, length, settings.current().resample)
    when_over = None
    if bound is not None:
        when_over = functools.partial(_over, patch_id, _reference(data_set), id(data_set))
    return Chain(length, start, groups, bound, when_over)


def _pick(number: int) -> resampler.Pick:
    import numpy

    stream = _stream()
    return lambda size: resampler.spread(int(numpy.random.randint(size)), size, stream, number)


# ---- which process this is


def _worker_information() -> Any:
    data = sys.modules.get("torch.utils.data")
    return data.get_worker_info() if data is not None else None


def _worker_text() -> str:
    information = _worker_information()
    return "" if information is None else ", loader worker %d" % information.id


def _identity() -> Tuple[int, ...]:
    """The number of this process among its parent's children, after that of its parent; empty at the top."""
    processes = sys.modules.get("multiprocessing.process")
    return tuple(getattr(processes.current_process(), "_identity", ())) if processes is not None else ()


def _stream() -> int:
    """A number that differs between ranks and between the processes of a rank; 0 in the only one."""
    rank = identity.rank_of(os.environ)
    if rank is None:
        dist = sys.modules.get("torch.distributed")
        started = dist is not None and dist.is_available() and dist.is_initialized()
        rank = dist.get_rank() if dist is not None and started else 0
    information = _worker_information()
    if information is not None:
        return (rank << 32) + int(information.id) + 1  # the same in every epoch, whoever else was started
    number = 0
    for part in _identity():
        number = number * 4099 + part
    return (rank << 32) + (number << 16)


# ---- what is told of it

_came_through: Dict[int, Any] = {}  # data sets in which a chain has found a sample, by their id


def _reference(data_set: Any) -> Any:
    try:
        return weakref.ref(data_set)
    except TypeError:
        return None


def _has_come_through(data_set: Any) -> bool:
    reference = _came_through.get(id(data_set))
    return reference is not None and reference() is data_set


def _over(patch_id: str, reference: Any, data_set_id: int, chain: Chain) -> None:
    """A chain has ended. Called while its frame is taken down: nothing may be raised from here."""
    if chain.failed:
        return
    try:
        if reference is not None:
            _came_through[data_set_id] = reference
        tally = _tally(patch_id)
        if tally.add(data_set_id, chain) and tally.noteworthy & (tally.noteworthy - 1) == 0:
            _note(patch_id)  # the 1st, 2nd, 4th, 8th … time: the whole job's ledger is sent at every change
    except Exception as error:
        ledger.note_failure(patch_id, error)


def _tally(patch_id: str) -> resampling_report.Tally:
    def at_end() -> None:
        # Also runs in loader workers, which run no atexit functions.
        from multiprocessing import util

        pid = os.getpid()
        util.Finalize(None, lambda: _say_totals(patch_id, pid), exitpriority=0)

    return resampling_report.tally(patch_id, at_end)


def _generation() -> int:
    """How many sets of loader workers this rank had before this one: mostly there is one for an epoch."""
    information = _worker_information()
    if information is None:
        return 0
    return (_identity()[-1] - 1) // max(1, int(information.num_workers)) if _identity() else 0


def _say(patch_id: str, text: Callable[[], str]) -> None:
    unsaid = _tally(patch_id).may_say() if resampling_report.speaks(_generation()) else None
    if unsaid is None:
        return
    console.warn(
        text() + (" %d lines like this were left out since the last one." % unsaid if unsaid else "")
    )
    _note(patch_id)


def _say_totals(patch_id: str, pid: int) -> None:
    if pid != os.getpid():  # a finalizer that a forked child has inherited
        return
    tally = _tally(patch_id)
    if tally.noteworthy and resampling_report.speaks(_generation()):
        console.warn("%s, in total%s: %s" % (patch_id, _worker_text(), tally.text()))
        _note(patch_id)


def _note(patch_id: str) -> None:
    """The totals so far in the ledger of this process."""
    for row in ledger.rows():
        if row.id == patch_id and row.state == ledger.APPLIED and row.target.endswith("._rand_another"):
            ledger.record(patch_id, row.target, reason=_tally(patch_id).text())
