"""One thread per rank that notices when this rank waits for others without progress, and has it reported.

It looks once a second at the main thread's stack, at the number of collectives of each group (counted by
torch itself, in C++) and at the CPU time of the process. Nothing of torch is wrapped, nothing is done per
step. When a rank that waits has not moved for ``stall_after`` it opens a *round* in the job's store: every
rank posts where it stands, and the lowest one that answers prints what follows from that. A round that
nobody answers is no reason to wait: all of this is done in the channel's thread, with bounds.

The same thread hears what the other ranks have to say: that one of them has failed, or that the job is to
end (see ``ending``).
"""

from __future__ import annotations

import functools
import threading
import time
from typing import Any, Callable, Optional, Tuple

from ... import console, settings
from .. import ending, exit_wait, news, run_folder, stacks, start_line
from ..channel import Task
from ..client import ChannelError, Client
from ..job import Job
from . import acting, build_lock, groups, listeners, loader, neighbours, rounds, standing, worker_stacks
from .motion import Motion, children_cpu, debugger
from .post import BUSY, LONGEST_STACK, Post
from .report import Report

_LOOK_SECONDS = 1.0
# A node's ranks together ask the store less than twice a second, and none hears later than it must.
_ASK_SECONDS, _SHORTEST_ASK_SECONDS = 0.75, 1.5  # the first is times the ranks of a node
_MOVED_SECONDS = 3.0  # less than for posts: this rank looks at itself, now
_TELLING_RANKS = 2  # of a node
_WARM_COLLECTIVES = 30  # more than DDP's construction and the first steps' set-up take
_BEFORE_FIRST_STEP = 10 / 3  # times stall_after: 10 minutes with the default of 3


class Monitor:
    """The thread of one rank of one job."""

    def __init__(self, job: Job, local_world_size: int = 1) -> None:
        self._job = job
        self._ask_seconds = max(_SHORTEST_ASK_SECONDS, _ASK_SECONDS * local_world_size)
        self._motion = Motion()
        self._ending = ending.Ending(job)
        self._signs = exit_wait.Signs(job, self.post)
        self._base: Optional[int] = None  # of the default group's counter
        self._reports = 0  # of this standstill
        self._round: Optional[rounds.Round] = None
        self._end_at: Optional[float] = None  # when a report has said that the job is to be ended
        self._news = 0
        self._answered = 0
        self._print_until = 0.0  # another rank may leave a report for this one to print
        self._to_print: Optional[Tuple[int, int]] = None
        self._muted = False
        self._end = threading.Event()
        self._stop_hearing: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="ddp_patches monitor", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        worker_stacks.prepare_children()
        self._stop_hearing = self._job.channel.every(self._ask_seconds, self._hear)
        self._thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """End the thread; it never blocks for long."""
        self._end.set()
        self._stop_hearing()
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def leave(self, client: Client) -> None:
        """For the channel's thread: this rank's job ends, and it will not answer any more."""
        rounds.leave(client, self._job.rank, self.post(quickly=True))

    def _run(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            try:
                self._look()
            except Exception as error:  # the training goes on without a monitor
                console.warn("this rank will report no stall, its monitor failed: %r" % (error,))
                return

    def _look(self) -> None:
        motion = self._motion
        if motion.look(stacks.main_thread_places(), groups.counters()):
            self._reports, self._end_at = 0, None
            self._ending.decide_alone("")
        if self._to_print is not None:
            self._print_for_another_rank(*self._to_print)
        self._ending.look(motion.standing.kind, motion.idle())
        if self._round is not None:
            self._go_on(self._round)
        elif self._is_due():
            self._round = rounds.Round(
                self._job, self._reports + 1, self._ask_seconds, self._has_moved, self._publish
            )

    def _go_on(self, running: rounds.Round) -> None:
        try:
            if not running.is_over():
                return
            if running.ending is not None:
                self._end_at = time.monotonic() + running.ending.seconds
        except ChannelError as error:
            self._report_alone("the job's store does not answer (%s)" % error)
        self._round = None

    # ---- when to ask

    def _is_due(self) -> bool:
        after = stall_seconds(self._is_warm())
        if after is None or not self._may_wait():
            return False
        is_time = self._motion.idle() >= after * 2**self._reports
        has_to_end = self._end_at is not None and time.monotonic() >= self._end_at
        if not is_time and not has_to_end:
            return False
        watched = debugger(stacks.main_frame())
        if watched:
            if not self._muted:
                console.say("no report of a stall while %s is attached to this rank." % watched)
            self._muted = True
        return not watched

    def _may_wait(self) -> bool:
        """Whether this rank waits for others. Where the GPU does the collectives, the stack does not tell."""
        kind = self._motion.standing.kind
        if kind in standing.WAITS or kind in (standing.LOADER, standing.LOCK):
            return True
        return kind in (standing.ELSEWHERE, standing.GPU) and groups.counts_started_work(groups.backend())

    def _is_warm(self) -> bool:
        count = self._motion.counters.get("default")
        if count is None:
            return False
        self._base = count if self._base is None else self._base
        return count - self._base > _WARM_COLLECTIVES

    def _has_moved(self) -> bool:
        return self._motion.idle() < _MOVED_SECONDS

    # ---- what others ask and say; in the channel's thread

    def _hear(self, client: Client) -> None:
        if time.monotonic() < self._print_until:
            self._look_for_a_report(client)
        count = news.count(client)
        if count == self._news:
            return
        self._news = count
        self._signs.hear(client)
        number = rounds.asked(client)
        if number > self._answered:
            self._answer(client, number)
        self._ending.hear(client)

    def _answer(self, client: Client, number: int) -> None:
        self._answered = number
        self._reports += 1  # of this standstill: whoever asks, all count
        patience = self._ask_seconds + rounds.LATE_SECONDS + rounds.STORE_SECONDS
        self._print_until = time.monotonic() + patience
        if self._tells_of_neighbours() and len(self._job.peers()) < self._job.world_size:
            self._job.collect(client)
        rounds.answer(client, number, self.post())

    def _tells_of_neighbours(self) -> bool:
        """Two ranks of a node do, since one may be gone: it costs a request for each rank of the job."""
        return (self._job.record.get("local_rank") or 0) < _TELLING_RANKS

    def _look_for_a_report(self, client: Client) -> None:
        report = rounds.duty(client, self._answered, self._job.rank)
        if report:
            self._print_until = 0.0
            self._to_print = (self._answered, report)

    # ---- what is said

    def _print_for_another_rank(self, number: int, number_of_report: int) -> None:
        self._to_print = None
        posts = self._asked(functools.partial(rounds.collect, self._job, number), {})
        report = rounds.build(self._job, posts, number_of_report)
        if report is not None:
            self._publish(report)

    def _publish(self, report: Report) -> None:
        text, content = report.text(), report.as_dict()
        path = run_folder.add(
            self._asked(start_line.run, ""), "stall-%s.json" % time.strftime("%H%M%S"), content
        )
        console.warn(text + ("\nAll stacks: %s" % path if path and report.number > 1 else ""))
        listeners.tell({"text": text, **content})

    def _asked(self, task: Task, otherwise: Any) -> Any:
        try:
            return self._job.channel.call(task, rounds.STORE_SECONDS)
        except ChannelError:
            return otherwise

    def _report_alone(self, reason: str) -> None:
        post = self.post()
        if post.idle < _MOVED_SECONDS or not (post.waits() or post.kind == standing.LOADER):
            return  # it has gone on, and the store has ended with the job
        self._reports += 1
        end = acting.end_alone(post.idle, rounds.own_limit() if post.waits() else None)
        sentence = "This rank is %s; where the others are is not known: %s." % (post.where(), reason)
        console.warn(
            "STALL, %s. %s\n%s"
            % (settings.format_duration(round(post.idle)), sentence, rounds.what_happens(end))
        )
        if end is not None:
            self._end_at = time.monotonic() + end.seconds
            if end.seconds <= 0:
                self._ending.decide_alone("%s %s" % (sentence, end.sentence()))

    def post(self, quickly: bool = False) -> Post:
        """Where this rank stands now; up to a second, unless ``quickly``."""
        record, motion, frame = self._job.record, self._motion, stacks.main_frame()
        stack, counters = stacks.places(frame), groups.counters()
        found, idle = standing.classify(stack), motion.idle_at(stack, counters)
        cpu, detail = motion.cpu, ""
        if found.kind == standing.LOCK:
            detail = build_lock.detail(frame)
        elif found.kind == standing.LOADER and not quickly:
            detail = loader.worker(frame)
        elif found.kind == standing.ELSEWHERE and not quickly and cpu < BUSY and idle > _MOVED_SECONDS:
            cpu += children_cpu()
        return Post(
            self._job.rank, record["host"], self._job.pid, found.kind, found.what, found.sentence(),
            round(idle, 1), round(cpu, 2), counters,
            [stacks.describe_fully(place) for place in stack[:LONGEST_STACK]], detail,
            groups.backend(), groups.members(frame) if found.kind == standing.COLLECTIVE else [],
            {} if quickly else neighbours.absent(self._job),
        )  # fmt: skip


def stall_seconds(is_warm: bool) -> Optional[float]:
    """After how many seconds of standstill a round is opened; None: never.

    Compilation, a first scan or an autotuner make the time before the first steps longer.
    """
    seconds = settings.current().stall_after
    if not seconds:
        return None
    is_default = settings.active().sources.get("stall_after", "default") == "default"
    return seconds if is_warm or not is_default else seconds * _BEFORE_FIRST_STEP
