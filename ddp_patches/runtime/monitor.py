"""One thread per rank that notices when this rank waits for others without progress, and has it reported.

It looks once a second at the main thread's stack, at the number of collectives of each group (counted by
torch itself, in C++) and at the CPU time of the process. Nothing of torch is wrapped, nothing is done per
step. When a rank that waits has not moved for ``stall_after`` it opens a *round* in the job's store: every
rank posts where it stands, and the rank that opened the round prints what follows from that. A round that
nobody answers is no reason to wait: all of this is done in the channel's thread, with bounds.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from types import FrameType
from typing import Any, Callable, Dict, List, Mapping, Optional

from .. import console, settings
from . import findings, identity, loader, progress, stacks, standing, worker_stacks
from .channel import Pending
from .client import ChannelError, Client
from .job import Job

_LOOK_SECONDS = 1.0
_ASK_SECONDS = 1.5  # times the ranks of a node
_SUSPENDED_SECONDS = 15.0  # between two looks: the whole job, or the machine, was asleep
_MOVED_SECONDS = 3.0
_STORE_SECONDS = 10.0  # without an answer: this rank reports alone
_LATE_SECONDS = 5.0  # for posts, beyond the time in which every rank must have looked
_LONGEST_STACK = 40  # frames
_LONGEST_TEXT = 30000  # characters of a report that another rank prints
_WARM_COLLECTIVES = 30  # more than DDP's construction and the first steps' set-up take
_BEFORE_FIRST_STEP = 10 / 3  # times stall_after: 10 minutes with the default of 3

Counters = Callable[[], Dict[str, int]]


class Monitor:
    """The thread of one rank of one job."""

    def __init__(self, job: Job, counters: Counters, local_world_size: int = 1) -> None:
        """``counters`` gives the number of collectives by group; see ``patches/torch``."""
        self._job = job
        self._counters = counters
        # So that a node's ranks together ask the store less than once a second.
        self._ask_seconds = _ASK_SECONDS * max(1, local_world_size)
        self._motion = Motion()
        self._first: Dict[str, int] = {}
        self._round: Optional[_Round] = None
        self._reports = 0  # of this standstill
        self._answered = 0
        self._print_until = 0.0  # another rank may have left a report for this one
        self._muted = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddp_patches monitor", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        worker_stacks.prepare_children()
        self._job.channel.every(self._ask_seconds, self._answer)
        self._thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """End the thread; it never blocks for long."""
        self._end.set()
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def leave(self, client: Client) -> None:
        """For the channel's thread: this rank's job ends, and it will not answer any more."""
        client.put("stall/left/%d" % self._job.rank, json.dumps(dataclasses.asdict(self.post())))

    def _run(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            try:
                self._look()
            except Exception as error:  # the training goes on without a monitor
                console.warn("this rank will report no stall, its monitor failed: %r" % (error,))
                return

    def _look(self) -> None:
        counters = self._counters()
        self._first = self._first or counters
        if self._motion.look(stacks.main_thread_places(), counters):
            self._reports = 0
        if self._round is not None:
            if self._round.is_over():
                self._round = None
        elif self._is_due():
            self._round = _Round(self._job, self.post, self._reports + 1, self._ask_seconds)

    def _is_due(self) -> bool:
        after = stall_seconds(self._is_warm())
        if after is None or self._motion.idle() < after * 2**self._reports:
            return False
        if not _waits(standing.classify(self._motion.stack).kind):
            return False
        if is_debugged(self._motion.stack):
            if not self._muted:
                console.say("no report of a stall while a debugger is attached to this rank.")
            self._muted = True
            return False
        return True

    def _is_warm(self) -> bool:
        return any(
            number - self._first.get(name, number) > _WARM_COLLECTIVES
            for name, number in self._counters().items()
        )

    def _answer(self, client: Client) -> None:
        """For the channel's thread: post where this rank stands, if a round has been opened."""
        self._print_what_was_left(client)
        number = client.add("stall/asked", 0)
        if number > self._answered:
            self._answered = number
            self._reports += 1  # of this standstill: whoever asks, all count
            self._print_until = time.monotonic() + self._ask_seconds + _LATE_SECONDS + _STORE_SECONDS
            post = json.dumps(dataclasses.asdict(self.post()))
            client.put("stall/%d/post/%d" % (number, self._job.rank), post)
            client.add("stall/%d/posts" % number, 1)

    def _print_what_was_left(self, client: Client) -> None:
        """For the channel's thread: the report of a round that another rank has opened."""
        if time.monotonic() > self._print_until:
            return
        text = client.take(_text_key(self._answered, self._job.rank))
        if text:
            self._print_until = 0.0
            if client.add("stall/%d/printed" % self._answered, 1) == 1:
                console.warn(text)

    def post(self) -> findings.Post:
        """Where this rank stands now."""
        record = self._job.record
        stack = stacks.main_thread_places()
        found = standing.classify(stack)
        worker = loader.worker(main_frame()) if found.kind == standing.LOADER else ""
        return findings.Post(
            self._job.rank, record["host"], self._job.pid, found.kind, found.what, found.sentence(),
            round(self._motion.idle(), 1), round(self._motion.cpu, 2), self._counters(),
            [stacks.describe(place) for place in stack[:_LONGEST_STACK]], worker,
        )  # fmt: skip


def _waits(kind: str) -> bool:
    return kind in standing.WAITS or kind == standing.LOADER


def _text_key(number: int, rank: int) -> str:
    return "stall/%d/text/%d" % (number, rank)


def stall_seconds(is_warm: bool) -> Optional[float]:
    """After how many seconds of standstill a round is opened; None: never.

    Compilation, a first scan or an autotuner make the time before the first steps longer.
    """
    seconds = settings.current().stall_after
    if not seconds:
        return None
    is_default = settings.active().sources.get("stall_after", "default") == "default"
    return seconds if is_warm or not is_default else seconds * _BEFORE_FIRST_STEP


class Motion:
    """Since when a rank has not moved: its main thread's stack and its counters are the same."""

    def __init__(self) -> None:
        now = time.monotonic()
        self._moved_at = self._looked_at = now
        self._spent = time.process_time()
        self._seen: Any = None
        self.stack: List[stacks.Place] = []
        self.cpu = 0.0  # seconds per second since the last look

    def look(self, stack: List[stacks.Place], counters: Mapping[str, int]) -> bool:
        """Whether it has moved since the last look."""
        now, spent = time.monotonic(), time.process_time()
        gap = now - self._looked_at
        if gap > 0:
            self.cpu = (spent - self._spent) / gap
        self._looked_at, self._spent = now, spent
        seen = [(file, line) for file, line, _ in stack], dict(counters)
        moved = bool(seen != self._seen) or gap > _SUSPENDED_SECONDS
        self._seen, self.stack = seen, stack
        if moved:
            self._moved_at = now
        return moved

    def idle(self) -> float:
        """Seconds since it moved."""
        return time.monotonic() - self._moved_at


class _Round:
    """One question to all ranks, from the rank that opened it. Looked at once a second, never blocks."""

    def __init__(self, job: Job, post: Callable[[], findings.Post], report: int, ask_seconds: float) -> None:
        self._job = job
        self._post = post
        self._report = report
        self._began = time.monotonic()
        self._ask_seconds = ask_seconds
        self._patience = ask_seconds + _LATE_SECONDS
        self._number = 0
        self._text = ""
        self._step: Callable[[Any], bool] = self._opened
        self._pending: Pending = job.channel.submit(self._open)

    def is_over(self) -> bool:
        if not self._pending.wait(0):
            if time.monotonic() - self._began < self._patience + _STORE_SECONDS:
                return False
            return self._report_alone("the job's store does not answer")
        try:
            return self._step(self._pending.result())
        except ChannelError as error:
            return self._report_alone("the job's store does not answer (%s)" % error)

    def _open(self, client: Client) -> int:
        number = client.add("stall/over", 0) + 1
        if client.first("stall/%d/by" % number, str(self._job.rank)) != str(self._job.rank):
            return 0
        client.add("stall/asked", 1)
        return number

    def _opened(self, number: int) -> bool:
        if not number:
            return True  # another rank asks, and prints
        self._number = number
        self._step = self._waited
        self._pending = self._job.channel.submit(self._count)
        return False

    def _count(self, client: Client) -> int:
        return client.add("stall/%d/posts" % self._number, 0)

    def _waited(self, posts: int) -> bool:
        if posts < self._job.world_size and time.monotonic() - self._began < self._patience:
            self._pending = self._job.channel.submit(self._count)
            return False
        self._step = self._collected
        self._pending = self._job.channel.submit(self._collect)
        return False

    def _collect(self, client: Client) -> Dict[int, findings.Post]:
        self._job.collect(client)
        prefix = "stall/%d/post/" % self._number
        texts = {
            rank: client.take(prefix + str(rank)) or client.take("stall/left/%d" % rank)
            for rank in range(self._job.world_size)
        }
        parsed = {rank: parse(text, rank) for rank, text in texts.items()}
        return {rank: post for rank, post in parsed.items() if post is not None}

    def _collected(self, posts: Dict[int, findings.Post]) -> bool:
        silent = {rank: self._of_silent(rank) for rank in range(self._job.world_size) if rank not in posts}
        without = [rank for rank in silent if self._job.peers().get(rank) is None]
        finding = findings.find(posts, silent, without)
        if finding is None:  # it has gone on meanwhile
            self._job.channel.submit(lambda client: client.add("stall/over", 1))
            return True
        idle = max(post.idle for post in posts.values())
        lines = ["STALL, %s. %s" % (settings.format_duration(round(idle)), finding.sentence)]
        if self._report > 1:
            lines += [finding.meaning, finding.advice]
            lines += ["  " + line for line in findings.table(posts, silent)]
        self._text = "\n".join(lines)
        return self._hand_over(min(rank for rank, post in posts.items() if post.kind != standing.LEAVING))

    def _hand_over(self, printer: int) -> bool:
        """Users look at the log of the lowest rank: it prints, or we do if it does not come to that."""
        self._step = self._handed_over
        if printer == self._job.rank:
            self._patience = 0.0
        else:
            self._patience += time.monotonic() - self._began + self._ask_seconds
            text, key = self._text[:_LONGEST_TEXT], _text_key(self._number, printer)
            self._job.channel.submit(lambda client: client.put(key, text))
        self._job.channel.submit(lambda client: client.add("stall/over", 1))
        self._pending = self._job.channel.submit(self._claim)
        return False

    def _claim(self, client: Client) -> bool:
        """Whether it is this rank that prints, or the report has been printed."""
        printed = "stall/%d/printed" % self._number
        if time.monotonic() - self._began < self._patience:
            return client.add(printed, 0) > 0
        if client.add(printed, 1) == 1:
            console.warn(self._text)
        return True

    def _handed_over(self, is_printed: bool) -> bool:
        if not is_printed:
            self._pending = self._job.channel.submit(self._claim)
        return is_printed

    def _of_silent(self, rank: int) -> str:
        peer = self._job.peers().get(rank)
        name = progress.who(self._job, rank).partition(" (")[2].rstrip(")")
        said = "gives no sign" + (" (%s)" % name if name else "")
        if peer is None:
            return "is without ddp_patches, or has not said where it is"
        if peer["node"] != self._job.record["node"]:
            return said
        if identity.has_died(peer["pid"], peer["started"]):
            return "is gone (%s): its process has ended" % name
        if identity.is_stopped(peer["pid"]):
            return "is stopped (%s): SIGSTOP or a debugger; `kill -CONT %d` lets it go on" % (
                name,
                peer["pid"],
            )
        return said

    def _report_alone(self, reason: str) -> bool:
        post = self._post()
        if post.idle < _MOVED_SECONDS or not _waits(post.kind):
            return True  # it has gone on, and the store has ended with the job
        console.warn(
            "STALL, %s. This rank is %s; where the others are is not known: %s."
            % (settings.format_duration(round(post.idle)), post.standing, reason)
        )
        return True


def parse(text: str, rank: int) -> Optional[findings.Post]:
    """A peer's post, None if it is not one: what a peer sends is checked, never executed."""
    try:
        said = json.loads(text)
        post = findings.Post(
            int(said["rank"]), str(said["host"])[:200], int(said["pid"]), str(said["kind"])[:40],
            str(said["what"])[:60], str(said["standing"])[:300], float(said["idle"]), float(said["cpu"]),
            {str(name)[:60]: int(count) for name, count in list(said["counters"].items())[:100]},
            [str(line)[:300] for line in said["stack"][:_LONGEST_STACK]], str(said["worker"])[:200],
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return post if post.rank == rank else None


def main_frame() -> Optional[FrameType]:
    """The innermost frame of the main thread."""
    ident = threading.main_thread().ident
    return sys._current_frames().get(ident) if ident is not None else None


def is_debugged(stack: List[stacks.Place]) -> bool:
    """Whether somebody looks at this process: then it may stand still for as long as he likes."""
    if any(os.path.basename(file) in ("pdb.py", "bdb.py", "pydevd.py") for file, _, _ in stack):
        return True
    try:
        with open("/proc/self/status") as file:
            return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in file)
    except OSError:
        return False
