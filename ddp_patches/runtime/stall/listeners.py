"""Who else gets a report: the command of the setting ``on_report``, and callbacks of the user's program.

Light: the package's ``on_report`` is looked up here in processes that never import torch.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from typing import Any, Callable, Dict, List

from ... import console, settings

_BOUND_SECONDS = 10.0

Callback = Callable[[Dict[str, Any]], Any]

_callbacks: List[Callback] = []


def on_report(callback: Callback) -> Callback:
    """Call ``callback(report)`` on the rank that prints a stall report, on a thread of ours.

    ``report``: a dict with ``text`` and the fields of the JSON file (``kind``, ``severity``, ``sentence``,
    ``missing``, ``ranks`` …). Returns the callback, so that it can be used as a decorator. What it raises
    is printed in one line and stops nothing.
    """
    _callbacks.append(callback)
    return callback


def tell(report: Dict[str, Any]) -> None:
    """Hand a report to all who want it; at most ten seconds for the command."""
    for callback in list(_callbacks):
        try:
            callback(report)
        except Exception as error:  # the training goes on
            console.warn("on_report: %r raised %r" % (callback, error))
    command = settings.current().on_report
    if command:
        _run(command, json.dumps(report).encode())


def _run(command: str, text: bytes) -> None:
    # The command is a child of a rank, and none of the job's ranks.
    environ = {**os.environ, settings.SWITCH: "0"}
    try:
        process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.PIPE, env=environ, start_new_session=True
        )
    except (OSError, ValueError) as error:
        console.warn("on_report: %s cannot be started: %s" % (command, error))
        return
    try:
        process.communicate(text, timeout=_BOUND_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
        process.communicate()
        console.warn("on_report: %s did not end within %ds and was ended" % (command, _BOUND_SECONDS))
        return
    if process.returncode:
        console.warn("on_report: %s ended with exit code %d" % (command, process.returncode))
