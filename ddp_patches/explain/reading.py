"""Lines of logs: files, ``.gz``, pipes, Kaggle's and torchrun's JSON; never more than a piece in memory."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import stat
import zlib
from typing import IO, Any, Dict, Iterator, List, Tuple

# A log may have lines of megabytes (a progress bar that redraws itself, binary junk). They are looked at in
# pieces; what lies across a cut is found because the next piece begins a little earlier.
PIECE = 16384  # characters
OVERLAP = 1024
_BATCH = 65536  # characters

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)?|[@-Z\\-_])")
_BROKEN = (OSError, EOFError, zlib.error, UnicodeError)

NumberedText = Tuple[int, str]


class Unreadable(Exception):
    """A path cannot be read; the message says why."""


@contextlib.contextmanager
def opened(path: str) -> Iterator[IO[str]]:
    """A file as text, decompressed if it is gzip's. Raises Unreadable.

    Pipes are read (``<(zcat ...)``); devices are not, since some of them never end.
    """
    try:
        kind = os.stat(path).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            raise Unreadable("it is neither a file nor a folder nor a pipe")
        stream = open(path, "rb")  # noqa: SIM115
    except (OSError, ValueError) as error:
        raise Unreadable(getattr(error, "strerror", None) or str(error)) from error
    with stream:
        yield as_text(stream)


def as_text(stream: Any) -> IO[str]:
    """A buffered binary stream as text. Bytes that are no UTF-8 become replacement characters."""
    try:
        start = stream.peek(4)[:4]
    except _BROKEN as error:
        raise Unreadable(str(error)) from error
    if start[:2] == b"\x1f\x8b":
        stream = io.BufferedReader(gzip.GzipFile(fileobj=stream, mode="rb"))
    # PowerShell's > writes UTF-16.
    encoding = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    return io.TextIOWrapper(stream, encoding=encoding, errors="replace", newline="\n")


def lines(stream: IO[str]) -> Iterator[NumberedText]:
    """Line numbers with texts, without line ends and escape sequences; JSON records are unwrapped.

    One line gives several texts if it is long or redrawn with carriage returns. Raises Unreadable
    where the stream breaks off (a truncated ``.gz``); everything before it has been given by then.
    """
    records = _Records()
    for number, text in _pieces(stream):
        if text.startswith(_RECORD_STARTS):
            for inner in records.texts(text):
                yield number, _plain(inner)
        else:
            yield number, _plain(text)
    for inner in records.rest():
        yield number, _plain(inner)


def batches(stream: IO[str]) -> Iterator[List[NumberedText]]:
    """``lines`` in lists of bounded size. Raises Unreadable as it does, after the last full list."""
    batch: List[NumberedText] = []
    size = 0
    try:
        for number, text in lines(stream):
            batch.append((number, text))
            size += len(text) + 1
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    except Unreadable:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _pieces(stream: IO[str]) -> Iterator[NumberedText]:
    number, kept = 1, ""
    while True:
        try:
            text = stream.readline(PIECE)
        except _BROKEN as error:
            raise Unreadable("it breaks off after line %d (%s)" % (number, error)) from error
        if not text:
            return
        is_end = text.endswith("\n")
        drawn = (kept + text).rstrip("\r\n").split("\r")
        for part in drawn:
            if part:
                yield number, part
        if not is_end:
            kept = drawn[-1][-OVERLAP:]
        else:
            kept = ""
            number += 1


def _plain(text: str) -> str:
    return _ESCAPES.sub("", text) if "\x1b" in text else text


_RECORD_STARTS = ('{"stream_name"', '[{"stream_name"', ',{"stream_name"', '{"message": {"message"')


class _Records:
    """Kaggle's log, one JSON record per line, and torchrun's ``error.json``."""

    def __init__(self) -> None:
        self._unfinished: Dict[str, str] = {}  # by stream: a record need not end with its line

    def texts(self, text: str) -> Iterator[str]:
        try:
            record = json.loads(text.lstrip("[,").rstrip(",] "))
        except (ValueError, RecursionError):
            yield text  # truncated: its messages can be found all the same
            return
        if not isinstance(record, dict):
            return
        name = str(record.get("stream_name", ""))
        data = record.get("data")
        if isinstance(data, str):
            whole = self._unfinished.get(name, "") + data
            *finished, rest = whole.replace("\r", "\n").split("\n")
            if len(self._unfinished) < 8 or name in self._unfinished:
                self._unfinished[name] = rest[-PIECE:]
            yield from (line for line in finished if line)
            return
        stack = _callstack(record.get("message"))
        yield from stack.split("\n")

    def rest(self) -> Iterator[str]:
        yield from (text for text in self._unfinished.values() if text)


def _callstack(message: Any) -> str:
    if not isinstance(message, dict):
        return ""
    more = message.get("extraInfo")
    stack = more.get("py_callstack") if isinstance(more, dict) else None
    return str(stack or message.get("message", ""))
