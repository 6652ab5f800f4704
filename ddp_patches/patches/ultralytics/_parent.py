"""The parent's part of a launch: what it prepares before upstream starts the launcher, and what follows.

Upstream makes the command in ``generate_ddp_command`` and runs it in ``BaseTrainer.train``. All of ours lies
around these two: the command that is run is upstream's, with another port where that one was taken since, and
with one option more under nohup.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any, List, Optional, Tuple

from ... import console
from ...runtime import failure_folder, family, first_failure, identity, launched, memory, port
from ...runtime.family import Process
from ...runtime.interruption import Interruption

_PORT = "--master_port"
# All that torch's launcher handles by default, but for SIGHUP.
_SIGNALS = "--signals-to-handle=SIGTERM,SIGINT,SIGQUIT"
_MODULE = "torch.distributed.run"


class WorkersFailed(subprocess.CalledProcessError):
    """Upstream's exception, with what is known of the rank that failed first.

    ``report``: who, with which exit code, and its own traceback.
    """

    report = ""

    def __str__(self) -> str:
        return "%s\n%s" % (super().__str__(), self.report)


class Launch:
    """One call of ``train()`` in a process that is no worker; most of them launch nothing."""

    def __init__(self) -> None:
        self._launched: Optional[launched.Launch] = None
        self._keeper: Optional[socket.socket] = None
        self._interruption = Interruption(self._launcher)
        self._memory_kills: Optional[int] = None

    def prepare(self, command: List[str], script: str, is_generated: bool) -> List[str]:
        """The command to run instead of upstream's, which is about to be run. ``script``: the workers'."""
        command = self._with_kept_port(self._with_hangup_ignored(command))
        self._memory_kills = memory.oom_kills()
        position = command.index(_MODULE)
        self._launched = launched.Launch(
            parent=family.this_process(),
            node=identity.node_key(),
            folder=tempfile.mkdtemp(prefix="ddp_patches-launch-"),
            files=(script, os.path.splitext(script)[0] + ".pt") if is_generated else (),
            arguments=tuple(command[position + 1 :]),
            script=script,
            library=library(),
        )
        os.environ[launched.VARIABLE] = self._launched.encode()
        os.environ[failure_folder.VARIABLE] = self._launched.folder
        self._interruption.arm()
        return command

    @property
    def was_interrupted(self) -> bool:
        """Whether a signal asked for the end of the launch."""
        return self._interruption.received is not None

    @property
    def has_failed(self) -> bool:
        """Whether the launcher has failed."""
        return self._launched is not None and first_failure.has_failed(self._launched.folder)

    def report(self) -> str:
        """What is known of a failed launch; empty where nothing is, or where a signal was the reason."""
        if self._launched is None or self.was_interrupted:
            return ""
        folder, before, now = self._launched.folder, self._memory_kills, memory.oom_kills()
        killed = now - before if now is not None and before is not None else 0
        return first_failure.text(
            first_failure.read(folder), first_failure.launchers_error(folder), memory_kills=killed
        )

    def close(self) -> None:
        """Take everything back; upstream has removed its own files."""
        self._interruption.disarm()
        if self._keeper is not None:
            self._keeper.close()
        if self._launched is not None:
            os.environ.pop(launched.VARIABLE, None)
            os.environ.pop(failure_folder.VARIABLE, None)
            shutil.rmtree(self._launched.folder, ignore_errors=True)

    def follow_signal(self) -> None:
        """After :meth:`close`. Raises KeyboardInterrupt, or ends the process, if a signal asked for it."""
        self._interruption.follow()

    def _launcher(self) -> Optional[Process]:
        found = (
            launched.read(self._launched.folder, launched.LAUNCHER) if self._launched is not None else None
        )
        # Without a start time (no /proc) nobody can be told from a later process with the same pid.
        return Process(int(found[0]), str(found[1])) if isinstance(found, list) and found[1] else None

    def _with_kept_port(self, command: List[str]) -> List[str]:
        if not port.is_possible() or _PORT not in command:
            return command
        position = command.index(_PORT) + 1
        number = int(command[position])
        self._keeper = port.keep(number)
        if self._keeper is None:
            number, self._keeper = port.keep_another()
        return [*command[:position], str(number), *command[position + 1 :]]

    def _with_hangup_ignored(self, command: List[str]) -> List[str]:
        hangup = getattr(signal, "SIGHUP", None)
        if hangup is None or signal.getsignal(hangup) != signal.SIG_IGN or _MODULE not in command:
            return command
        if not _takes_signals():
            console.warn(
                "SIGHUP is ignored (nohup), but the launcher of torch %s ends at a closed terminal all the "
                "same: start it with setsid or inside tmux, or use a newer torch"
                % getattr(sys.modules.get("torch"), "__version__", "")
            )
            return command
        position = command.index(_MODULE) + 1
        return [*command[:position], _SIGNALS, *command[position:]]


def library() -> str:
    """The folder of the Ultralytics that this process has imported."""
    file = getattr(sys.modules.get("ultralytics"), "__file__", None)
    return os.path.dirname(os.path.realpath(file)) if file else ""


def generated_files(folder: str, trainer: Any) -> Tuple[str, ...]:
    """The files that upstream has written into its folder for the workers of this trainer."""
    endings = tuple("%d%s" % (id(trainer), ending) for ending in (".py", ".pt"))
    try:
        names = os.listdir(folder)
    except OSError:
        return ()
    return tuple(os.path.join(folder, name) for name in names if name.endswith(endings))


def _takes_signals() -> bool:
    from torch.distributed import run

    return any("--signals-to-handle" in action.option_strings for action in run.get_args_parser()._actions)
