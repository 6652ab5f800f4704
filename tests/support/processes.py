"""Start a command in a session of its own, wait with a limit, and end whatever it started.

Every process that a test starts carries a mark in its environment, which its descendants inherit. By this
mark they are found in /proc when they have outlived their parent or have a process group of their own, as
torchrun's workers do. Without /proc (macOS) only the command's own process group is ended.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import time
import uuid
from typing import Any, Mapping, Sequence

_MARK = "TEST_PROCESS"
_ABORT_SECONDS = 3.0  # for faulthandler to write the stacks of a process that is aborted
_POLL_SECONDS = 0.05


class Result:
    """What became of a command. `str()` of it shows everything that is known."""

    def __init__(self, running: Running, timed_out: bool, seconds: float, leftovers: list[int]) -> None:
        self.name = running.name
        self.command = running.command
        self.pid = running.pid
        self.timed_out = timed_out
        # The exit code as subprocess has it: minus the signal's number for a process that a signal ended.
        # None if the limit ended it.
        self.returncode = None if timed_out else running.popen.returncode
        self.seconds = seconds
        # Processes that the command had started and that were still running when it ended.
        self.leftovers = leftovers
        self.stdout = running.stdout()
        self.stderr = running.stderr()

    def check(self, returncode: int = 0) -> Result:
        """Return this result if the command ended by itself with `returncode`; else fail with its output."""
        assert self.returncode == returncode, "expected exit code %d of\n%s" % (returncode, self)
        return self

    @property
    def answers(self) -> list[Any]:
        """The JSON objects that the command printed, one alone on a line of standard output."""
        return [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]

    @property
    def answer(self) -> Any:
        """The one JSON object that the command printed."""
        assert len(self.answers) == 1, "expected one line of JSON from\n%s" % self
        return self.answers[0]

    def __str__(self) -> str:
        end = "ended at its limit" if self.timed_out else "exit code %s" % self.returncode
        lines = ["%s (pid %d): %s after %.1f s" % (self.name, self.pid, end, self.seconds)]
        lines.append("  command: %s" % " ".join(self.command))
        if self.leftovers:
            lines.append("  left running: %s" % self.leftovers)
        for title, text in (("stdout", self.stdout), ("stderr", self.stderr)):
            lines.append("  %s:" % title)
            lines.extend("    | " + line for line in text.splitlines())
        return "\n".join(lines)

    __repr__ = __str__


class Running:
    """A command that has been started. Its output goes to `<name>.out` and `<name>.err` in a folder."""

    def __init__(
        self,
        command: Sequence[object],
        folder: pathlib.Path,
        environment: Mapping[str, str],
        name: str,
        directory: pathlib.Path | None = None,
    ) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self._out, self._err = folder / (name + ".out"), folder / (name + ".err")
        self._mark = uuid.uuid4().hex
        self._started = time.monotonic()
        self._result: Result | None = None
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.popen = subprocess.Popen(
                self.command,
                cwd=str(directory or folder),
                env={**environment, _MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.pid = self.popen.pid

    def stdout(self) -> str:
        """What the command has written to standard output so far."""
        return self._out.read_text(encoding="utf-8", errors="replace")

    def stderr(self) -> str:
        """What the command has written to standard error so far."""
        return self._err.read_text(encoding="utf-8", errors="replace")

    def send(self, number: int) -> None:
        """Send a signal to the command itself, not to what it started."""
        os.kill(self.pid, number)

    def descendants(self) -> list[int]:
        """Running processes that the command has started, however far down, in no order."""
        return [pid for pid in _marked(self._mark) if pid != self.pid]

    def wait_for(self, text: str, limit: float) -> None:
        """Wait until `text` appears in the output. Fails after `limit` seconds, or when the command ends."""
        deadline = time.monotonic() + limit
        while text not in self.stdout() + self.stderr():
            over = self.popen.poll() is not None or time.monotonic() > deadline
            if over and text not in self.stdout() + self.stderr():
                raise AssertionError("%r did not appear in the output of\n%s" % (text, self.wait(0)))
            time.sleep(_POLL_SECONDS)

    def wait(self, limit: float) -> Result:
        """Wait until the command ends, at most `limit` seconds; then end everything that is left of it."""
        if self._result is None:
            timed_out = False
            try:
                self.popen.wait(limit)
            except subprocess.TimeoutExpired:
                timed_out = True
            seconds = time.monotonic() - self._started
            leftovers = self.descendants()
            if timed_out:
                self._abort()
            self._kill()
            self._result = Result(self, timed_out, seconds, leftovers)
        return self._result

    def end(self) -> None:
        """End the command and everything that is left of it, without waiting for any of it."""
        if self._result is None:
            self._kill()

    def _abort(self) -> None:
        """Let every process of the command write its stacks and end."""
        for pid in {self.pid, *self.descendants()}:
            # A stopped process acts on the signal only when it runs again.
            _send(pid, signal.SIGABRT)
            _send(pid, signal.SIGCONT)
        try:
            self.popen.wait(_ABORT_SECONDS)
        except subprocess.TimeoutExpired:
            pass

    def _kill(self) -> None:
        """End the command's group, and what has left that group."""
        deadline = time.monotonic() + 10
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # macOS says the latter where only zombies are left
            pass
        self.popen.wait()
        # A process may start another while this looks, hence until none is found.
        while time.monotonic() < deadline:
            remaining = self.descendants()
            if not remaining:
                return
            for pid in remaining:
                _send(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        raise AssertionError("processes %s of %s cannot be ended" % (self.descendants(), self.name))


class Processes:
    """Starts commands for one test and ends them with it. Use the fixture `processes`."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._running: list[Running] = []

    def start(
        self,
        command: Sequence[object],
        environment: Mapping[str, str],
        name: str | None = None,
        directory: pathlib.Path | None = None,
    ) -> Running:
        """Start `command` in `directory` (else the test's folder) with exactly this environment."""
        name = name or "process%d" % len(self._running)
        running = Running(command, self.folder, environment, name, directory)
        self._running.append(running)
        return running

    def run(
        self,
        command: Sequence[object],
        environment: Mapping[str, str],
        limit: float = 120,
        name: str | None = None,
        directory: pathlib.Path | None = None,
    ) -> Result:
        """Start `command` and wait for it, at most `limit` seconds."""
        return self.start(command, environment, name, directory).wait(limit)

    def end(self) -> None:
        """End everything that still runs."""
        for running in self._running:
            running.end()


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _marked(mark: str) -> list[int]:
    wanted = ("%s=%s" % (_MARK, mark)).encode()
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):  # empty for a zombie
                found.append(int(entry.name))
        except OSError:  # it has ended, or belongs to somebody else
            continue
    return found


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
