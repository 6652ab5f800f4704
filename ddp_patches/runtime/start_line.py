"""Rank 0's line at the start of a job, and the job's ledger file.

The line is what a user looks for: no line means that ddp_patches is not on in this job.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Mapping, Optional

from .. import __version__, console, settings
from . import identity, limits, records, run_folder
from .channel import OVER
from .client import Client
from .job import Job

_WAIT_SECONDS = 10.0  # for the records of the others, before the line is printed without them
_SHORT_JOB_SECONDS = 2.0
_EARLY_LOOK_SECONDS = 0.1
_LOOK_SECONDS = 5.0  # how often rank 0 looks for changed records, with two requests


def text(found: Mapping[int, records.Record], world_size: int, run: str, folder: Optional[str]) -> str:
    """The line. ``found``: records by rank, rank 0's among them; ``run``: the id of the run."""
    own = found[0]
    hosts = sorted({record["host"] for record in found.values()})
    without = [rank for rank in range(world_size) if rank not in found]
    failed = {r["id"] for record in found.values() for r in record["patches"] if r["state"] == "failed"}
    applied = {r["id"] for r in own["patches"] if r["state"] == "applied"} - failed
    packages = ", ".join("%s %s" % item for item in sorted(own["packages"].items())) or "no framework"
    parts = [
        "ddp_patches %s is on for %d of %d ranks%s on %s"
        % (__version__, len(found), world_size,
           " (not %s)" % records.ranks_phrase(without) if without else "", _listed(hosts)),
        packages,
        "%d patches applied, %d failed%s"
        % (len(applied), len(failed), " (%s)" % ", ".join(sorted(failed)) if failed else ""),
        _limits(own["limits"]),
        "details: ddp-patches status --run %s" % run if folder else "details: in this log only",
        "off: DDP_PATCHES=0",
    ]  # fmt: skip
    return "; ".join(parts)


def _listed(hosts: List[str]) -> str:
    return (
        ", ".join(hosts)
        if len(hosts) <= 4
        else "%s and %d more hosts" % (", ".join(hosts[:3]), len(hosts) - 3)
    )


def _limits(snapshot: Mapping[str, Any]) -> str:
    if not snapshot["groups"]:
        return "no limit recorded"
    group = snapshot["groups"][0]
    line = "collectives time out after %s, set by %s" % (
        settings.format_duration(group["timeout"]), group["set_by"]
    )  # fmt: skip
    return "; ".join([line] + list(snapshot["changes"]))


def run(client: Client) -> str:
    """The id of the job's run, ``""`` while rank 0 has not printed its line."""
    return client.take("run")


class Announcer:
    """Rank 0's part, run by the channel's thread: prints the line, then keeps the ledger file current."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._began = time.monotonic()
        self._printed = False
        self._revision = -1
        self._folder: Optional[str] = None
        self._no_folder: Optional[str] = None
        self._started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        self.run = "%s-%s" % (time.strftime("%Y%m%d-%H%M%S"), job.generation[:6])

    def start(self) -> None:
        """Have the channel call us."""
        self._job.channel.every(_EARLY_LOOK_SECONDS, self._early)
        self._job.channel.every(_LOOK_SECONDS, self._later)
        self._job.before_close(self._last)

    def _early(self, client: Client) -> Any:
        if self._printed:
            return OVER
        complete = client.add("records", 0) >= self._job.world_size
        if not complete and time.monotonic() - self._began < _WAIT_SECONDS:
            return None
        self._print(client)
        return OVER

    def _last(self, client: Client) -> None:
        """The job ends."""
        if self._printed:
            self._later(client)
        elif time.monotonic() - self._began > _SHORT_JOB_SECONDS:
            self._print(client)
        else:
            self._early(client)  # or ranks that had no time to publish their record would be called missing

    def _print(self, client: Client) -> None:
        self._printed = True
        found = self._job.collect(client)
        found[0] = self._job.record
        try:
            self._folder = run_folder.make(self.run)
        except OSError as error:
            self._no_folder = str(error)
        client.put("run", self.run)
        console.say(text(found, self._job.world_size, self.run, self._folder))
        if self._no_folder and settings.current().run_dir.lower() != "none":
            console.warn("no run folder, the log has everything: %s" % self._no_folder)
        for sentence in records.shared_devices(found):
            console.warn(sentence)
        self._write(found)

    def _later(self, client: Client) -> None:
        if not self._printed:
            return
        revision = client.add("revision", 0) + client.add("records", 0)
        if revision != self._revision:
            self._revision = revision
            found = self._job.collect(client)
            found[0] = self._job.record
            self._write(found)

    def _write(self, found: Mapping[int, records.Record]) -> None:
        if self._folder is None:
            return
        try:
            run_folder.write(self._folder, self.ledger(found))
        except OSError as error:  # a full disk: once is enough, and training goes on
            self._folder = None
            console.warn("the run folder is given up, the log has everything: %s" % error)

    def ledger(self, found: Mapping[int, records.Record]) -> Dict[str, Any]:
        """The content of the ledger file: see ``run_folder.read``."""
        return {
            "run": self.run,
            "launcher_run_id": identity.run_id(os.environ),
            "started": self._started,
            "world_size": self._job.world_size,
            "launcher": identity.launcher(os.environ),
            "settings": {
                name: {"value": value, "source": settings.active().sources.get(name, "default")}
                for name, value in vars(settings.current()).items()
            },
            "limits": limits.snapshot(),
            "ranks": [found[rank] for rank in sorted(found)],
        }
