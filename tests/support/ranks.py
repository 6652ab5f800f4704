"""Start the ranks of a job on this machine: one by one, each with its environment, or through torchrun."""

from __future__ import annotations

import itertools
import os
import pathlib
import random
import socket
import sys
import textwrap
import time
from typing import Mapping, Sequence, Union

from support.processes import Processes, Result, Running

# The text of a program, or the path of a file that holds one.
Program = Union[str, pathlib.Path]


# Below Linux's range for outgoing connections (32768 and up): a port from there may be another connection's
# by the time the ranks have come. Each process of pytest-xdist has a share of its own, and draws all of it
# before it draws a port again.
_PORTS, _WORKERS = range(30000, 32768), 16
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _WORKERS
_SHARE = random.sample(_PORTS[_WORKER::_WORKERS], len(_PORTS) // _WORKERS)
_next_ports = itertools.cycle(_SHARE)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on, and that nobody else will soon get."""
    for port in itertools.islice(_next_ports, len(_SHARE)):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port from %d to %d is free" % (_PORTS[0], _PORTS[-1]))


def script(folder: pathlib.Path, program: Program, name: str = "program.py") -> pathlib.Path:
    """Write the text of a program, indented or not, into `folder`; a path is returned as it is."""
    if isinstance(program, pathlib.Path):
        return program
    path = folder / name
    path.write_text(textwrap.dedent(program), encoding="utf-8")
    return path


def variables(rank: int, count: int, port: int, nodes: int = 1) -> dict[str, str]:
    """What a launcher tells rank `rank` of `count` ranks, spread evenly over `nodes` nodes."""
    per_node = count // nodes
    assert per_node * nodes == count, "%d ranks on %d nodes" % (count, nodes)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % per_node),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(rank // per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


class Ranks:
    """The running ranks of one job, by their global rank."""

    def __init__(self, running: Sequence[Running]) -> None:
        self.running = list(running)

    def __getitem__(self, rank: int) -> Running:
        return self.running[rank]

    def __len__(self) -> int:
        return len(self.running)

    def wait(self, limit: float) -> list[Result]:
        """Wait until every rank has ended, at most `limit` seconds for all of them together."""
        deadline = time.monotonic() + limit
        return [running.wait(max(0.0, deadline - time.monotonic())) for running in self.running]


def start(
    processes: Processes,
    program: Program,
    environment: Mapping[str, str],
    count: int = 2,
    nodes: int = 1,
    each: Mapping[int, Mapping[str, str]] | None = None,
    arguments: Sequence[object] = (),
) -> Ranks:
    """Start `count` ranks of `program` with `environment`, and with `each[rank]` for single ranks on top.

    No launcher is involved: rank 0 hosts the store, and no rank is ended because another one failed.
    An empty value in `each` takes the variable away from that rank.
    """
    path = script(processes.folder, program)
    port = free_port()
    running = []
    for rank in range(count):
        own = {**environment, **variables(rank, count, port, nodes), **(each or {}).get(rank, {})}
        own = {name: value for name, value in own.items() if value != "" or name == "CUDA_VISIBLE_DEVICES"}
        running.append(processes.start([sys.executable, path, *arguments], own, name="rank%d" % rank))
    return Ranks(running)


def run(
    processes: Processes,
    program: Program,
    environment: Mapping[str, str],
    count: int = 2,
    nodes: int = 1,
    each: Mapping[int, Mapping[str, str]] | None = None,
    arguments: Sequence[object] = (),
    limit: float = 120,
) -> list[Result]:
    """Start ranks as `start` does and wait for all of them; one result for each rank."""
    return start(processes, program, environment, count, nodes, each, arguments).wait(limit)


def torchrun_command(count: int, program: object, *arguments: object) -> list[object]:
    """The command that runs `program` on `count` ranks of this machine; its launcher hosts the store.

    `program` may be an option of the launcher's too.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=%d" % count]
    command += ["--master_addr=127.0.0.1", "--master_port=%d" % free_port()]
    return [*command, program, *arguments]


def torchrun(
    processes: Processes,
    program: Program,
    environment: Mapping[str, str],
    count: int = 2,
    arguments: Sequence[object] = (),
    limit: float = 180,
) -> Torchrun:
    """Run `program` on `count` ranks through `python -m torch.distributed.run` and wait for it."""
    path = script(processes.folder, program)
    logs = processes.folder / "logs"
    # 3: standard output and standard error of every rank, into the log folder and to the launcher's own.
    command = torchrun_command(count, "--log_dir=%s" % logs, "--redirects=3", "--tee=3", path, *arguments)
    return Torchrun(processes.run(command, environment, limit, name="torchrun"), logs)


class Torchrun:
    """The launcher's own result, and what each rank wrote."""

    def __init__(self, launcher: Result, logs: pathlib.Path) -> None:
        self.launcher = launcher
        self._logs = logs

    def stdout(self, rank: int) -> str:
        """Standard output of a rank of the first attempt."""
        return self._read(rank, "stdout.log")

    def stderr(self, rank: int) -> str:
        """Standard error of a rank of the first attempt."""
        return self._read(rank, "stderr.log")

    def _read(self, rank: int, name: str) -> str:
        # <log folder>/<a name made of the run id>/attempt_0/<rank>/
        files = list(self._logs.glob("*/attempt_0/%d/%s" % (rank, name)))
        assert len(files) == 1, "expected one %s of rank %d, found %s\n%s" % (
            name,
            rank,
            files,
            self.launcher,
        )
        return files[0].read_text(encoding="utf-8", errors="replace")
