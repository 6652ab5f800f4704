"""Python tracebacks and the launcher's failure table, which are spread over many lines."""

from __future__ import annotations

import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

_HEADERS = ("Traceback (most recent call last):", "Original Traceback (most recent call last):")
_STACK_HEADER = "Stack trace of the failed collective"
# Every text that begins something of several lines.
HEADERS = (_HEADERS[0], _STACK_HEADER, "Root Cause", "Failures:")
_FRAME = re.compile(
    r'\s{1,20}(?:\| )?File "(?P<file>[^"]{1,500})", line (?P<line>\d{1,9})(?:, in (?P<name>.{1,200}))?'
)
_LAST = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,200})(?::\s(?P<said>.{0,4000}).*)?$")
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python\d|\\lib\\|<frozen|<string>|/torch/", re.IGNORECASE
)
_MOST_LINES = 4000  # a recursion prints about a thousand frames of three lines
_MOST_STREAMS = 4096

_STACK_FRAME = re.compile(r"#\d{1,4} (?P<name>\S{1,200}) from (?P<file>.{1,500}):(?P<line>\d{1,9})")


class Raised(NamedTuple):
    """``place``: the last line of the user's own code, "" where two tracebacks are mixed up."""

    type: str
    said: str
    place: str


class _Open:
    def __init__(self) -> None:
        self.headers = 1  # of several ranks that write into one stream
        self.lines = 0
        self.own: Optional[str] = None
        self.last: Optional[str] = None

    def frame(self, match: re.Match[str]) -> None:
        place = _place(match)
        self.last = place
        if not _LIBRARY.search(match["file"]):
            self.own = place


class Tracebacks:
    """Follows the tracebacks of several streams at once."""

    def __init__(self) -> None:
        self._open: Dict[str, _Open] = {}

    def feed(self, text: str, stream: str) -> Optional[Raised]:
        """The exception whose traceback ends with this line."""
        if text.startswith(("Traceback", "Original Traceback")) and text.rstrip() in _HEADERS:
            self._begin(stream)
            return None
        current = self._open.get(stream) if self._open else None
        if current is None:
            return None
        current.lines += 1
        if current.lines > _MOST_LINES:
            del self._open[stream]
            return None
        if text[:1] in " |\t":
            match = _FRAME.match(text)
            if match:
                current.frame(match)
            return None
        match = _LAST.match(text)
        if match is None or current.last is None or not _is_exception(match["type"]):
            return None
        mixed = current.headers > 1
        current.headers -= 1
        if current.headers == 0:
            del self._open[stream]
        return Raised(match["type"], match["said"] or "", "" if mixed else current.own or current.last)

    def is_open(self) -> bool:
        """Whether a traceback has begun that has not ended."""
        return bool(self._open)

    def _begin(self, stream: str) -> None:
        current = self._open.get(stream)
        if current is not None:
            current.headers = min(current.headers + 1, 10000)
        elif len(self._open) < _MOST_STREAMS:
            self._open[stream] = _Open()


def _is_exception(name: str) -> bool:
    last = name.rpartition(".")[2]
    capitals = sum(c.isupper() for c in last)
    return last in ("Exception", "Empty") or (capitals >= 2 and not last.isupper())


def _place(match: re.Match[str]) -> str:
    place = "%s:%s" % (match["file"], match["line"])
    return "%s in %s" % (place, match["name"]) if match["name"] else place


class Stacks:
    """The Python stack that torch 2.5 and newer print for the collective that timed out.

    Its frames have no prefix: they belong to the header before them.
    """

    def __init__(self) -> None:
        self._rank: Optional[int] = None
        self._stream: Optional[str] = None  # of the header, while its frames are read

    def feed(self, text: str, stream: str, rank: Optional[int]) -> Optional[Tuple[str, Optional[int]]]:
        """Where the user's code called the collective, and the rank; once for each stack."""
        if _STACK_HEADER in text:
            self._stream, self._rank = (None if "not found" in text else stream), rank
            return None
        if self._stream is None or stream not in ("", self._stream):
            return None
        match = _STACK_FRAME.match(text)
        if match is None:
            self._stream = None
            return None
        if _LIBRARY.search(match["file"]):
            return None
        self._stream = None
        return _place(match), self._rank

    def is_open(self) -> bool:
        """Whether frames are expected."""
        return self._stream is not None


_TABLE_ENTRY = re.compile(r"\s{0,20}\[\d{1,6}\]:\s*$")
_TABLE_FIELD = re.compile(
    r"\s{0,20}(?P<name>time|host|rank|exitcode|error_file|traceback|msg)\s{0,12}:\s(?P<value>.{0,400})"
)
_TABLE_RANK = re.compile(r"(?P<rank>\d{1,6})(?: \(local_rank: (?P<local>\d{1,6})\))?")
_TABLE_EXIT = re.compile(r"(?P<exitcode>-?\d{1,6}) \(pid: (?P<pid>\d{1,9})\)")


class Tables:
    """torchrun's table of failures, in its forms since 1.9."""

    def __init__(self) -> None:
        self._is_root: Dict[str, bool] = {}
        self._entries: Dict[str, Dict[str, str]] = {}

    def feed(self, text: str, stream: str) -> Iterator[Dict[str, str]]:
        """The facts of an entry, when it is complete: rank, local, host, time, exitcode, pid, root."""
        if text.startswith("Root Cause"):
            yield from self._end(stream)
            self._begin(stream, True)
        elif text.startswith(("Failures:", "Other Failures:")):
            yield from self._end(stream)
            self._begin(stream, False)
        elif stream in self._is_root:
            if _TABLE_ENTRY.match(text):
                yield from self._end(stream)
                self._entries[stream] = {"root": "yes" if self._is_root[stream] else ""}
            elif stream in self._entries:
                found = _TABLE_FIELD.match(text)
                if found:
                    _read_field(self._entries[stream], found["name"], found["value"])
                elif text[:1] in "=*" and text[:4] in ("====", "****"):
                    yield from self._end(stream)
                    # 1.9 puts the root before a line of equals signs and the others behind it.
                    if self._is_root.get(stream):
                        del self._is_root[stream]

    def is_open(self) -> bool:
        """Whether a table has begun; it is not always seen to end."""
        return bool(self._is_root)

    def rest(self) -> Iterator[Dict[str, str]]:
        """The entries that the log's end has cut off."""
        for stream in list(self._entries):
            yield from self._end(stream)

    def _begin(self, stream: str, is_root: bool) -> None:
        if len(self._is_root) < _MOST_STREAMS:
            self._is_root[stream] = is_root

    def _end(self, stream: str) -> Iterator[Dict[str, str]]:
        entry = self._entries.pop(stream, None)
        if entry and "rank" in entry and "exitcode" in entry:
            yield entry


def _read_field(entry: Dict[str, str], name: str, value: str) -> None:
    if name in entry:
        return  # the traceback of an entry may contain such words, too
    if name == "rank":
        found = _TABLE_RANK.match(value)
        if found:
            entry.update(rank=found["rank"], local=found["local"] or "")
    elif name == "exitcode":
        found = _TABLE_EXIT.match(value)
        if found:
            entry.update(exitcode=found["exitcode"], pid=found["pid"])
    else:
        entry[name] = value.strip()


def numbers(text: str) -> List[int]:
    """Ranks of a list such as ``1, 3`` or ``0-2,5``, at most a few thousand."""
    found: List[int] = []
    for part in text.split(","):
        ends: Tuple[str, str, str] = part.strip().partition("-")
        if ends[0].isdecimal() and len(ends[0]) <= 6:
            first = int(ends[0])
            last = int(ends[2]) if ends[2].isdecimal() and len(ends[2]) <= 6 else first
            found += range(first, min(last, first + 4096) + 1)
        if len(found) > 4096:
            break
    return found
