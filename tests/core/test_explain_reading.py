"""Hostile and broken input of `ddp-patches explain`: bounded memory, linear time, nothing echoed."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import tracemalloc

import pytest

from ddp_patches.cli import main
from ddp_patches.explain import collectives, findings, folders, gathering, messages, prefixes, reading

TIMEOUT = (
    "[rank%d]:[E602 11:17:52.557891708 ProcessGroupNCCL.cpp:632] [Rank %d] Watchdog caught collective "
    "operation "
    "timeout: WorkNCCL(SeqNum=%d, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
    "600001 "
    "milliseconds before timing out.\n"
)


class Generated(io.RawIOBase):
    """A stream of `size` bytes that is made while it is read."""

    def __init__(self, block, size):
        self.block, self.left = block, size

    def readable(self):
        return True

    def readinto(self, buffer):
        count = min(len(buffer), self.left, len(self.block))
        buffer[:count] = self.block[:count]
        self.left -= count
        return count


def through(block, size):
    stream = reading.as_text(io.BufferedReader(Generated(block, size)))
    return gathering.gather(["-"], stream)[0]


JUNK = bytes(random.Random(1).randrange(256) for _ in range(4096))


# By name: a block as part of a test's own name would be printed with it.
STREAMS = {
    "an ordinary training": (b"a log line of an ordinary training that says nothing of interest\n" * 80, 50),
    "one line": (b"x" * 8192, 20),  # one line of 20 MB
    "progress bars": (b"50%|##### 1/2 [00:01<00:01]\r" * 300, 6),
    "time-outs": ((TIMEOUT % (1, 1, 7)).encode() * 30, 3),
    "junk": (JUNK, 4),
    "tracebacks": (b"Traceback (most recent call last):\n  File \"a\", line 1, in b\n" * 100, 1),
    "brackets": (b"[" * 8192, 2),
    "repeated needles": (b"[PG [Rank 1] Last enqueued NCCL work [Rank 2" * 180, 2),
    "launcher failures": (b"Root Cause (first observed failure):\n[0]:\n  rank : 1\n" * 100, 1),
    "JSON lines": (b'{"stream_name":"stderr","time":1.0,"data":"no end of line"}\n' * 100, 1),
}  # fmt: skip


# It alone takes half a minute on each Python.
LONGEST = "an ordinary training"


@pytest.mark.parametrize(
    "stream", [pytest.param(name, marks=[pytest.mark.matrix] if name == LONGEST else []) for name in STREAMS]
)
def test_memory_is_bounded(stream):
    """A log of any size and of lines of any length."""
    block, megabytes = STREAMS[stream]
    tracemalloc.start()
    try:
        collected = through(block, megabytes * 1_000_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert collected.sources[0].lines >= 1
    assert peak < 8_000_000, "%.1f MB" % (peak / 1e6)


def test_every_pattern_is_bounded():
    """No unlimited repetition but at a pattern's end: none can backtrack far."""
    for message in messages.CATALOGUE + messages.WORLD:
        source = message.pattern.pattern
        for unlimited in (".*", ".+", "]*", "]+", ")*", ")+", r"\s*", r"\d+"):
            assert unlimited not in source, "%s: %s in %s" % (message.kind, unlimited, source)


def test_the_number_of_looks_grows_with_the_size_alone():
    counts = []
    for megabytes in (1, 2):
        stream = reading.as_text(io.BufferedReader(Generated(b"y" * 8192, megabytes * 1_000_000)))
        counts.append(sum(len(text) for _, text in reading.lines(stream)))
    assert 1.9 < counts[1] / counts[0] < 2.1
    assert counts[0] < 1.1 * 1_000_000  # the overlap


def test_no_control_characters_are_echoed(tmp_path, capsys):
    """design.md, promise 10."""
    evil = (
        b'[rank0]: Traceback (most recent call last):\n[rank0]:   File "/a\x1b[2Jb.py", line 1, in \x07c\n'
        b"[rank0]:     x\n[rank0]: ValueError: \x1b]0;owned\x07\x1b[31mred\x9b5m\x00\xe2\x80\xae \x08 %s\n"
        b"ddp_patches 2026-11-30 20:56:30 [rank 1, h\x1b[1m, pid 80] STALL, \x1b[8mhidden\n"
    )
    path = tmp_path / "e\x1b[31mvil.log"
    path.write_bytes(evil)
    for words in ([], ["--json"]):
        assert main.main(["explain", *words, str(path)]) == 0
        said = capsys.readouterr()
        assert all(c.isprintable() or c == "\n" for c in said.out + said.err)
    assert json.loads(said.out)["first_failure"]["exception"] == "ValueError"


def test_broken_bytes_truncation_and_interleaving(tmp_path):
    """Korean text in another encoding, two messages in one line, a last line that is cut off."""
    line = TIMEOUT % (0, 0, 7)
    text = "학습".encode("cp949") + b" 50%|## " + line.rstrip("\n").encode() + (TIMEOUT % (1, 1, 7)).encode()
    path = tmp_path / "train.log"
    path.write_bytes(b"\xff\x81\n" + text + (TIMEOUT % (2, 2, 7)).encode()[:120])
    report = findings.conclude(gathering.gather([str(path)])[0])
    assert [item.rank for item in report.verdict.waiting] == [0, 1]
    assert report.world_size == 2


def test_a_message_across_the_cut_of_a_long_line_is_found(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("x" * (reading.PIECE - 100) + (TIMEOUT % (3, 3, 7)).rstrip("\n") + "y" * 50000)
    assert gathering.gather([str(path)])[0].of("nccl timeout")[0].rank == 3


def test_utf16_of_powershell(tmp_path):
    path = tmp_path / "train.log"
    path.write_bytes((TIMEOUT % (3, 3, 7)).encode("utf-16"))
    assert gathering.gather([str(path)])[0].of("nccl timeout")[0].rank == 3


def test_a_truncated_gzip_is_read_as_far_as_it_goes(tmp_path):
    path = tmp_path / "train.log.gz"
    rng = random.Random(2)
    text = (TIMEOUT % (3, 3, 7)) + "".join("%d\n" % rng.random().__hash__() for _ in range(20000))
    path.write_bytes(gzip.compress(text.encode())[:-2000])
    collected, problems = gathering.gather([str(path)])
    assert collected.of("nccl timeout") and problems == []
    assert "breaks off" in collected.sources[0].note
    path.write_bytes(b"\x1f\x8b junk")
    assert gathering.gather([str(path)])[1]


def test_kaggle_s_log_is_json_with_lines_in_pieces(tmp_path):
    line = (TIMEOUT % (3, 3, 7)).rstrip("\n")
    records = [line[:90], line[90:] + "\n"]
    text = "\n,".join(json.dumps({"stream_name": "stderr", "time": 1.5, "data": data}) for data in records)
    path = tmp_path / "kernel.log"
    path.write_text("[" + text + "\n]")
    event = gathering.gather([str(path)])[0].of("nccl timeout")[0]
    assert (event.rank, event.line) == (3, 2)


def test_a_thousand_ranks(tmp_path):
    path = tmp_path / "job.out"
    lines = ["%d: [rank%d]: something\n" % (rank, rank) for rank in range(1000)]
    lines += [TIMEOUT % (rank, rank, 7000) for rank in range(1000) if rank != 613]
    random.Random(3).shuffle(lines)
    path.write_text("world_size=1000\n" + "".join(lines))
    report = findings.conclude(gathering.gather([str(path)])[0])
    assert report.findings[0].sentence.startswith(
        "Rank 613 of 1000 probably never arrived: ranks 0-612 and 614-999 waited 10m for it in an all-reduce"
    )


@pytest.mark.parametrize(
    ("text", "rank", "local_rank", "task", "rest"),
    [
        ("[rank3]:[E602 x", 3, None, None, "[E602 x"),
        ("[rank3]: Traceback", 3, None, None, "Traceback"),
        ("[default1]:[rank5]: x", 5, 1, None, "x"),
        ("12: [rank7]: x", 7, None, 12, "x"),
        ("[1,19]<stderr>:RuntimeError", 19, None, None, "RuntimeError"),
        ("n012.cluster: [rank17]:[E x", 17, None, None, "[E x"),
        ("2025-02-27T16:30:43.48675097Z [rank3]: x", 3, None, None, "x"),
        ("RuntimeError: [Rank 0]: Rank 1 failed", None, None, None, "RuntimeError: [Rank 0]: Rank 1 failed"),
    ],
)
def test_prefixes(text, rank, local_rank, task, rest):
    line = prefixes.split(text)
    assert (line.rank, line.local_rank, line.task, line.text) == (rank, local_rank, task, rest)


def test_a_folder_gives_its_newest_run(tmp_path):
    """Runs must not be mixed: a rank of the one would be missed in the other."""
    for name, age in (("slurm-1.out", 300), ("slurm-2.out", 100), ("results.txt", 0)):
        (tmp_path / name).write_text("x\n")
        os.utime(tmp_path / name, (1_700_000_000 - age, 1_700_000_000 - age))
    choice = folders.newest_run(str(tmp_path))
    assert [path.rpartition("/")[2] for path in choice.files] == ["slurm-2.out"] and len(choice.others) == 1
    assert folders.run_of("7_ab12cd34/attempt_0/1/stderr.log") == folders.run_of(
        "7_zz99zz99/attempt_0/0/stderr.log"
    )
    assert folders.run_of("none_ab12cd34/attempt_0/1/stderr.log") == "none_ab12cd34"


def test_torchrun_s_log_folder_gives_the_last_attempt_with_local_ranks(tmp_path):
    for attempt in (0, 1):
        for local_rank in (0, 1):
            folder = tmp_path / "run_ab12cd34" / ("attempt_%d" % attempt) / str(local_rank)
            folder.mkdir(parents=True)
            (folder / "stderr.log").write_text("")
    stack = 'Traceback (most recent call last):\n  File "/a/b.py", line 3, in f\n    x\nKeyError: 1\n'
    (folder / "error.json").write_text(
        json.dumps(
            {"message": {"message": "KeyError: 1", "extraInfo": {"py_callstack": stack, "timestamp": "1"}}}
        )
    )
    report = findings.conclude(gathering.gather([str(tmp_path)])[0])
    assert report.first_failure.local_rank == 1
    assert report.first_failure.facts["place"] == "/a/b.py:3 in f"
    assert all("attempt_1" in source.path for source in report.sources)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [([3], "rank 3"), ([0, 1, 2], "ranks 0, 1 and 2"), ([0, 1, 2, 3, 9], "ranks 0-3 and 9"),
     (list(range(0, 100, 2)), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20 and 39 more")],
)  # fmt: skip
def test_many_ranks_in_few_words(ranks, said):
    assert collectives.phrase(ranks) == said
