"""Rank 0 of a Slurm step tells the others on which port the job meets.

All tasks know a few ports that are made of job, step and restart. On the first of them that is free rank 0
listens while the ranks come together, and answers whoever connects with one line of JSON. Nothing is read
from those who connect; of what a service says there, at most one short line is. A service that says nothing
is no beacon and proves nothing: the store itself is never looked for in this way.
"""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from typing import Any, Dict, Optional, Sequence

from . import closing, slurm
from .client import Address

PROTOCOL = 1
LONGEST_LINE = 256  # bytes; ours has about 80
_ANSWER_SECONDS = 1.0  # for the connection, and for the whole line
_BACKLOG = 1024  # ranks that ask at the same moment
_LOOK_SECONDS = 0.2  # how often the thread looks whether it is over
_STOP_SECONDS = 2.0


def line(step: slurm.Step, port: int) -> bytes:
    """What rank 0 answers."""
    said = {"protocol": PROTOCOL, **step._asdict(), "port": port}
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


def port_in(said: bytes, step: slurm.Step) -> Optional[int]:
    """The port in a line of rank 0 of this step; None for anything else, whoever has said it."""
    if len(said) > LONGEST_LINE or not said.endswith(b"\n"):
        return None
    try:
        found = json.loads(said.decode("ascii"))
    except (ValueError, RecursionError):
        return None
    expected: Dict[str, Any] = {"protocol": PROTOCOL, **step._asdict()}
    if not isinstance(found, dict) or not all(type(value) is int for value in found.values()):
        return None
    port = found.pop("port", 0)
    return port if found == expected and 1024 <= port <= 65535 else None


def ask(address: Address, step: slurm.Step) -> Optional[int]:
    """The port that a beacon of this step names; None if there is none, or another service.

    Takes at most about two seconds for each address that the host's name stands for.
    """
    try:
        with socket.create_connection(address, timeout=_ANSWER_SECONDS) as connection:
            return port_in(_first_line(connection), step)
    except OSError:
        return None


def _first_line(connection: socket.socket) -> bytes:
    """Raises OSError where the line is not complete in time."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    said = b""
    while b"\n" not in said and len(said) <= LONGEST_LINE:
        # A drop every now and then must not count as an answer each time.
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(LONGEST_LINE + 1 - len(said))
        if not part:
            break
        said += part
    return said


class Beacon:
    """Answers until ``stop()``. Raises OSError where none of the ports is free."""

    def __init__(self, ports: Sequence[int], answer: bytes) -> None:
        self._listener = _listen(ports)
        self._answer = answer
        self._over = False
        self._thread = threading.Thread(target=self._run, name="ddp_patches beacon", daemon=True)
        self._thread.start()
        self._take_back = closing.at_end("the beacon", self.stop)

    def _run(self) -> None:
        while not self._over:
            try:
                connection, _ = self._listener.accept()
            except socket.timeout:
                continue
            except OSError:  # the peer is gone already, or there are too many open files
                time.sleep(_LOOK_SECONDS)
                continue
            with connection:
                try:
                    connection.settimeout(_ANSWER_SECONDS)
                    connection.sendall(self._answer)
                except OSError:
                    pass  # whoever needs the answer asks again

    def stop(self) -> None:
        """End the thread and let go of the port. Once more does no harm."""
        self._over = True
        self._take_back()
        if self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)
        self._listener.close()


def _listen(ports: Sequence[int]) -> socket.socket:
    problem = OSError("no port to listen on")
    for port in ports:
        try:
            listener = _listen_on(port)
        except OSError as error:
            problem = error
            continue
        listener.settimeout(_LOOK_SECONDS)
        return listener
    raise problem


def _listen_on(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("", port), backlog=_BACKLOG)  # also where IPv6 is there but turned off
