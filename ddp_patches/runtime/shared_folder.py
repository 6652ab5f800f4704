"""Whether the ranks see the same folder, found out before any of them enters a collective.

Each rank but 0 writes a file of its own into the folder, and says so in the job's store; rank 0 looks for
all of them. Its verdict is written once and obeyed by all ranks, so that none raises while another goes
on. A rank that gives up writes the verdict *leave*, and all go on as upstream.

Keys below ``folder/<patch>/<number of the call>/``: counters ``come``, ``read`` and ``at/<rank>``; texts
``report/<rank>`` and ``verdict``.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from .. import console
from . import identity, limits
from .client import Client
from .job import Job

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 1.0
_LOOK_FOR_DEAD_SECONDS = 5.0
_READ_SECONDS = 5.0  # more than the longest pause of a rank that waits for the verdict
_LONGEST_TEXT = 4000  # characters of a verdict
_LONGEST_PATH = 500  # characters of a folder in a report
_SHOWN = 8  # ranks in one verdict


class FolderNotShared(FileNotFoundError):
    """Rank 0 does not see the files of other ranks; the message says which, where, and what to set."""


class Report(NamedTuple):
    """What one rank says: its host, its folder, and why it could not write there (``""``: it could)."""

    host: str
    folder: str
    error: str


def explain(reports: Mapping[int, Report], unseen: List[int], advice: str) -> Optional[str]:
    """Why the folder is not shared, for people; None if it is.

    ``reports``: by rank, rank 0's among them; ``unseen``: ranks whose file rank 0 has not found.
    """
    if not unseen:
        return None
    lines = []
    for rank in unseen[:_SHOWN]:
        report = reports.get(rank, Report("unknown host", "unknown folder", ""))
        said = "cannot write there: %s" % report.error if report.error else "has written to it"
        lines.append("  rank %d on %s: %s, %s" % (rank, report.host, report.folder, said))
    if len(unseen) > _SHOWN:
        lines.append("  and %d more ranks" % (len(unseen) - _SHOWN))
    own = reports[0]
    text = "rank 0 on %s does not find the parts of %d of %d ranks in %s%s. They have\n%s\n%s" % (
        own.host, len(unseen), len(reports), own.folder, " (%s)" % own.error if own.error else "",
        "\n".join(lines), advice,
    )  # fmt: skip
    return text[:_LONGEST_TEXT]


class Check:
    """One check of one folder. Used by the main thread of every rank of ``job``."""

    def __init__(self, job: Job, name: str, folder: str, advice: str) -> None:
        """``name``: of this check, the same on all ranks and for no other check of the job."""
        self._job = job
        self._prefix = "folder/%s/" % name
        self._folder = folder
        self._file = ".ddp_patches-%s-%s" % (job.generation, name.replace("/", "-"))
        self._advice = advice
        self._patience = limits.own_limit()
        self._began = time.monotonic()
        self._look_for_dead = self._began + _LOOK_FOR_DEAD_SECONDS

    def result(self, prepare: Callable[[], None]) -> Optional[str]:
        """Why the folder is not shared, the same on all ranks; None: it is, or nobody knows.

        ``prepare()`` makes the folder, as upstream does before it writes there. Takes as long as the
        slowest rank, at most the group's own limit. Raises ChannelError when the store is lost; what
        else goes wrong here sends all ranks on as upstream.
        """
        try:
            verdict = self._lead(prepare) if self._job.rank == 0 else self._follow(prepare)
        except BaseException:
            self._job.channel.submit(lambda client: client.first(self._prefix + "verdict", "leave"))
            raise
        if verdict in ("shared", "leave"):
            return None
        self._let_all_read()
        return console.printable(verdict)[:_LONGEST_TEXT]

    def _let_all_read(self) -> None:
        """Rank 0 may host the store, and is about to raise: until the others have the verdict."""
        self._call(lambda client: client.add(self._prefix + "read", 1))
        deadline = time.monotonic() + _READ_SECONDS
        while self._job.rank == 0 and time.monotonic() < deadline:
            if self._call(lambda client: client.add(self._prefix + "read", 0)) >= self._job.world_size:
                return
            time.sleep(_FIRST_PAUSE_SECONDS)

    def _lead(self, prepare: Callable[[], None]) -> str:
        error = _error_of(prepare)
        self._arrive(error)
        verdict = self._wait_for(self._job.world_size)
        if verdict:
            return verdict
        reports = self._call(self._reports)
        others = range(1, self._job.world_size)
        unseen = [rank for rank in others if not os.path.exists(self._path(rank))]
        return self._decide(explain(reports, unseen, self._advice) or "shared")

    def _follow(self, prepare: Callable[[], None]) -> str:
        verdict = self._wait_for(1, "at/0")  # a folder that rank 0 makes is there only now
        if verdict:
            return verdict
        path = self._path(self._job.rank)

        def write() -> None:
            prepare()
            with open(path, "w"):
                pass

        try:
            self._arrive(_error_of(write))
            return self._wait_for(None)
        finally:
            _error_of(lambda: os.remove(path))

    def _path(self, rank: int) -> str:
        return os.path.join(self._folder, "%s-%d" % (self._file, rank))

    def _arrive(self, error: str) -> None:
        report = [socket.gethostname(), os.path.abspath(self._folder)[:_LONGEST_PATH], error[:_LONGEST_PATH]]

        def arrive(client: Client) -> None:
            client.put(self._prefix + "report/%d" % self._job.rank, json.dumps(report))
            client.add(self._prefix + "at/%d" % self._job.rank, 1)
            client.add(self._prefix + "come", 1)

        self._call(arrive)

    def _wait_for(self, count: Optional[int], counter: str = "come") -> str:
        """The verdict, or ``""`` as soon as ``counter`` has reached ``count``."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            verdict, come = self._call(lambda client: self._look(client, counter))
            if verdict or (count is not None and come >= count):
                return verdict
            if time.monotonic() - self._began > self._patience or self._somebody_died():
                return self._decide("leave")
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)

    def _look(self, client: Client, counter: str) -> Tuple[str, int]:
        return client.take(self._prefix + "verdict"), client.add(self._prefix + counter, 0)

    def _somebody_died(self) -> bool:
        """Whether a process of this node is gone. What becomes of that is upstream's affair."""
        if time.monotonic() < self._look_for_dead:
            return False
        self._look_for_dead = time.monotonic() + _LOOK_FOR_DEAD_SECONDS
        node = self._job.record["node"]
        own_node = [peer for peer in self._job.peers().values() if peer["node"] == node]
        return any(identity.has_died(peer["pid"], peer["started"]) for peer in own_node)

    def _decide(self, verdict: str) -> str:
        said: str = self._call(lambda client: client.first(self._prefix + "verdict", verdict))
        return said

    def _reports(self, client: Client) -> Dict[int, Report]:
        texts = {rank: client.take(self._prefix + "report/%d" % rank) for rank in range(self._job.world_size)}
        return {rank: _parsed(text) for rank, text in texts.items()}

    def _call(self, task: Callable[[Client], Any]) -> Any:
        return self._job.channel.call(task, self._patience)


def _error_of(action: Callable[[], None]) -> str:
    try:
        action()
    except OSError as error:
        return "%s: %s" % (type(error).__name__, error.strerror or error)
    return ""


def _parsed(text: str) -> Report:
    """A peer's report: what a peer sends is checked, never executed."""
    try:
        host, folder, error = json.loads(text)
        return Report(str(host)[:_LONGEST_PATH], str(folder)[:_LONGEST_PATH], str(error)[:_LONGEST_PATH])
    except (ValueError, TypeError, RecursionError):
        return Report("unknown host", "unknown folder", "")


_latest: Optional[Tuple[Job, Dict[str, int]]] = None


def next_number(job: Job, patch_id: str) -> int:
    """The number of this rank's next check for a patch in ``job``."""
    global _latest
    if _latest is None or _latest[0] is not job:
        _latest = (job, {})
    numbers = _latest[1]
    numbers[patch_id] = numbers.get(patch_id, 0) + 1
    return numbers[patch_id]
