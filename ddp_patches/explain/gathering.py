"""From lines to events: who wrote what, and what the job was at."""

from __future__ import annotations

import os
import re
import sys
from typing import IO, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import folders, messages, prefixes, reading, tracebacks
from .events import Collector, Source, whole

STANDARD_INPUT = "-"
SHOWN_AS = "standard input"

_PLACE_OF_SIGNAL = re.compile(r"collective timeout from\s{1,3}(this local rank|rank \d{1,6})")
_AT_WORK = re.compile(r"(?:at work(?: sequence id)?|Timeout at NCCL work): (\d{1,15})")


def gather(paths: Iterable[str], stdin: Optional[IO[str]] = None) -> Tuple[Collector, List[str]]:
    """Read files, folders and ``-``; returns what was found, and a sentence for each unreadable path."""
    collector, problems = Collector(), []
    for path in paths:
        if path == STANDARD_INPUT:
            problems += _read(collector, SHOWN_AS, stdin or reading.as_text(sys.stdin.buffer))
            continue
        chosen, problem = _files(collector, path)
        problems += [problem] if problem else []
        for file in chosen:
            try:
                with reading.opened(file) as stream:
                    problems += _read(collector, file, stream)
            except reading.Unreadable as error:
                collector.sources.append(Source(file, note=str(error)))
                problems.append("%s: %s" % (file, error))
    return collector, problems


def _files(collector: Collector, path: str) -> Tuple[List[str], str]:
    if not os.path.isdir(path):
        return [path], ""
    choice = folders.newest_run(path)
    if not choice.files:
        return [], "%s: no file in this folder looks like a log (*.log, *.out, *.err, *.txt)" % path
    if choice.others:
        shown = ", ".join(choice.others[:3]) + (", ..." if len(choice.others) > 3 else "")
        note = "%d older runs are left out: %s" % (len(choice.others), shown)
        collector.sources.append(Source(path, note=note))
    return choice.files, ""


def _read(collector: Collector, name: str, stream: IO[str]) -> List[str]:
    source = Source(name)
    collector.sources.append(source)
    reader = _Reader(collector, source)
    try:
        for batch in reading.batches(stream):
            reader.feed(batch)
    except reading.Unreadable as error:
        source.note = str(error)
        if not source.lines:
            return ["%s: %s" % (name, error)]
    finally:
        reader.end()
    return []


class _Wanted(NamedTuple):
    """What a batch of lines contains, and is therefore looked for in each of them."""

    messages: Tuple[messages.Message, ...]
    worlds: Tuple[messages.Message, ...]
    stages: List[Tuple[str, str]]
    starts: List[str]


class _Reader:
    """One file."""

    def __init__(self, collector: Collector, source: Source) -> None:
        self._collector = collector
        self._source = source
        self._file_rank = prefixes.rank_of_file(source.path)
        self._file_local_rank = prefixes.local_rank_of_file(source.path)
        self._stage = ""
        self._has_failed = False
        self._spawned: Optional[int] = None  # the rank whose traceback mp.spawn prints next
        self._worlds: Dict[str, int] = {}
        self._restart()

    def _restart(self) -> None:
        self._tracebacks = tracebacks.Tracebacks()
        self._stacks = tracebacks.Stacks()
        self._tables = tracebacks.Tables()

    def feed(self, batch: Sequence[reading.NumberedText]) -> None:
        """Look at some lines, or pieces of lines.

        Nearly all of a long log says nothing. What a batch does not contain is not looked for in its lines,
        which makes this several times faster.
        """
        self._source.lines = batch[-1][0]
        block = "\n".join(text for _, text in batch)
        wanted = _Wanted(
            messages.present(messages.CATALOGUE, block),
            messages.present(messages.WORLD, block),
            [item for item in messages.STAGES if item[0] in block],
            [start for start in messages.STARTS if start in block],
        )
        is_spread = any(header in block for header in tracebacks.HEADERS)
        if not (is_spread or any(wanted) or self._is_within()):
            return
        for number, text in batch:
            self._line(number, text, wanted, is_spread)

    def _is_within(self) -> bool:
        """Whether a traceback, a stack or a table has begun that goes on."""
        return self._tracebacks.is_open() or self._stacks.is_open() or self._tables.is_open()

    def _line(self, number: int, text: str, wanted: _Wanted, is_spread: bool) -> None:
        self._note_stage(text, wanted)
        found = list(messages.found_in(text, wanted.messages))
        for kind, match in messages.found_in(text, wanted.worlds):
            self._world(kind, match["ranks"], number, text)
        if not (found or is_spread or self._is_within()):
            return
        line = prefixes.split(text)
        if not line.text:
            return
        kinds = [kind for kind, match in found if self._take(kind, match, number, text, line)]
        raised = self._tracebacks.feed(line.text, line.stream)
        if raised is not None:
            facts = {"type": raised.type, "said": raised.said, "place": raised.place,
                     "cause": kinds[0] if kinds else ""}  # fmt: skip
            rank = self._spawned if line.rank is None and self._spawned is not None else None
            self._add("exception", number, text, line, rank, facts)
            self._spawned = None
        stack = self._stacks.feed(line.text, line.stream, line.rank)
        if stack is not None:
            self._add("waits at", number, text, line, stack[1], {"place": stack[0]})
        for entry in self._tables.feed(line.text, line.stream):
            self._table_entry(entry, number, line)

    def end(self) -> None:
        """The file has ended."""
        for entry in self._tables.rest():
            self._table_entry(entry, self._source.lines, prefixes.Line(""))

    def _take(self, kind: str, match: re.Match[str], number: int, text: str, line: prefixes.Line) -> bool:
        facts = {name: value for name, value in match.groupdict().items() if value}
        rank = whole(facts.pop("rank", None))
        if "work" in facts:
            facts.update(messages.work_facts(facts.pop("work")))
        if kind == "nccl progress":
            facts.update(_progress_facts(facts.pop("says", "")))
        if kind == "address in use" and "port2" in facts:
            facts["port"] = facts.pop("port2")
        if kind in ("command died", "command failed"):
            facts["local"] = prefixes.local_rank_in_command(text, match.start()) or ""
        if kind == "spawned process":
            self._spawned = rank
            return False
        own = prefixes.rank_within(text, match.start() + 1)
        shown = text[max(0, match.start() - 120) :] if match.start() > 200 else text
        self._add(kind, number, shown, line, rank if own is None else own, facts,
                  prefixes.clock(text, match.start()), own is not None)  # fmt: skip
        return True

    def _add(self, kind: str, number: int, text: str, line: prefixes.Line, rank: Optional[int],
             facts: Dict[str, str], clock: Optional[float] = None,
             is_sure: bool = False) -> None:  # fmt: skip
        self._has_failed = True
        # A message's own rank may be that of a subgroup; torch's prefix has the global one.
        if line.rank is not None and not is_sure:
            rank = line.rank
        if rank is None:
            rank = self._file_rank if self._file_rank is not None else line.task
        local = line.local_rank if line.local_rank is not None else self._file_local_rank
        self._collector.add(kind, self._source.path, number, text, rank=rank, local_rank=local,
                            clock=clock, stage=self._stage, facts=facts)  # fmt: skip

    def _table_entry(self, entry: Dict[str, str], number: int, line: prefixes.Line) -> None:
        self._has_failed = True
        rank = whole(entry.pop("rank"))
        text = "rank %s exitcode %s%s" % (
            rank,
            entry["exitcode"],
            " (first observed)" if entry["root"] else "",
        )
        self._collector.add("exit", self._source.path, number, text, rank=rank, stage=self._stage,
                            local_rank=whole(entry.pop("local", None)), facts=entry)  # fmt: skip

    def _note_stage(self, text: str, wanted: _Wanted) -> None:
        for needle, stage in wanted.stages:
            if needle in text:
                self._stage = stage
        if self._has_failed and any(start in text for start in wanted.starts):
            self._collector.begin_again(self._source)
            self._has_failed, self._stage = False, ""
            self._restart()

    def _world(self, kind: str, ranks: str, number: int, text: str) -> None:
        if "nnodes" in text and "nproc" in text:
            return  # of one node of several
        if len(self._worlds) < 64 and ranks not in self._worlds:
            self._worlds[ranks] = number
            self._collector.add(kind, self._source.path, number, text, stage=self._stage,
                                facts={"group": ranks, "ranks": ranks})  # fmt: skip


def _progress_facts(says: str) -> Dict[str, str]:
    facts = {}
    signal = _PLACE_OF_SIGNAL.search(says)
    if signal:
        facts["signal"] = signal[1]
    at = _AT_WORK.search(says)
    if at:
        facts["sequence"] = at[1]
    return facts
