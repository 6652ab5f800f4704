"""The first process of a node: `node_main.py HOST COMMAND…`. Says at the end what the command has left."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from support.processes import is_running


def main() -> int:
    """The command's exit code, 128 and the signal's number if a signal has ended it."""
    socket.sethostname(sys.argv[1])
    code = subprocess.call(sys.argv[2:])
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    left = [_command(pid) for pid in pids if pid != os.getpid() and is_running(pid)]
    print(json.dumps({"left": left}), flush=True)
    return code if code >= 0 else 128 - code


def _command(pid: int) -> str:
    try:
        return pathlib.Path("/proc/%d/cmdline" % pid).read_bytes().replace(b"\0", b" ").decode()
    except OSError:  # it has ended
        return ""


if __name__ == "__main__":
    sys.exit(main())
