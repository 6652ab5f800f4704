"""Two machines on this one: two network namespaces with a cable between them, a torchrun in each.

A node has a host name, pids, an interface and a loopback of its own; only the file system is shared. Nothing
that runs in there can reach anything but the other node. It needs Linux, `ip` (iproute2), `unshare`
(util-linux) and the right to make namespaces: see `why_not`.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import uuid
from typing import Mapping, Sequence

from support import ranks
from support.processes import Processes, Running, is_running

HOSTS = ("node-a", "node-b")
RANKS_PER_NODE = 2
_INTERFACE = "cable0"
# The second one is for the store alone, where a test asks for that.
_CABLES = {_INTERFACE: ("10.77.0.1", "10.77.0.2"), "cable1": ("10.77.1.1", "10.77.1.2")}
_PORT = 29400  # nobody else is in there
_PREFIX = "ddp-patches-test"
_UNSHARE = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]


class Nodes:
    """The namespaces and the cable. `remove` takes them away; what runs in there goes on, without a name."""

    def __init__(self) -> None:
        """Raises subprocess.CalledProcessError where this is not permitted."""
        _remove_left_overs()
        run = "%s-%d-%s" % (_PREFIX, os.getpid(), uuid.uuid4().hex[:8])
        self.names = ["%s-%d" % (run, node) for node in (0, 1)]
        try:
            for name in self.names:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            for interface, addresses in _CABLES.items():
                self._lay(interface, addresses)
        except BaseException:
            self.remove()
            raise

    def _lay(self, interface: str, addresses: Sequence[str]) -> None:
        one, other = self.names
        peer = ["peer", "name", interface, "netns", other]
        _ip("-n", one, "link", "add", interface, "type", "veth", *peer)
        for name, address in zip(self.names, addresses):
            _ip("-n", name, "address", "add", address + "/24", "dev", interface)
            _ip("-n", name, "link", "set", interface, "up")

    def cut(self, node: int = 1) -> None:
        """Take the interface of a node down: what is sent gets lost, and nobody hears of it."""
        _ip("-n", self.names[node], "link", "set", _INTERFACE, "down")

    def mend(self, node: int = 1) -> None:
        """Take it up again: what was lost is sent again."""
        _ip("-n", self.names[node], "link", "set", _INTERFACE, "up")

    def remove(self) -> None:
        """Once more does no harm."""
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)

    def torchrun(
        self,
        processes: Processes,
        program: ranks.Program,
        environments: Sequence[Mapping[str, str]],
        arguments: Sequence[object] = (),
        own_cable_for_store: bool = False,
    ) -> list[Running]:
        """Start two ranks of `program` on each node through torchrun, with an environment for each node.

        A node's last line of standard output is JSON: `{"left": [...]}`, the commands that torchrun has
        left behind. They end with the node.
        """
        path = ranks.script(processes.folder, program)
        master = _CABLES["cable1" if own_cable_for_store else _INTERFACE][0]
        return [
            processes.start(
                [*self._inside(node), *_launcher(node, master), path, *arguments],
                {**environments[node], "GLOO_SOCKET_IFNAME": _INTERFACE},
                name=HOSTS[node],
            )
            for node in (0, 1)
        ]

    def _inside(self, node: int) -> list[object]:
        main = pathlib.Path(__file__).with_name("node_main.py")
        return ["ip", "netns", "exec", self.names[node], *_UNSHARE, sys.executable, main, HOSTS[node]]


class Loopback:
    """A namespace with a loopback interface and nothing else: every port in there is free."""

    def __init__(self) -> None:
        """Raises CalledProcessError where this is not permitted, and FileNotFoundError without `ip`."""
        _remove_left_overs()
        self._name = "%s-%d-%s" % (_PREFIX, os.getpid(), uuid.uuid4().hex[:8])
        _ip("netns", "add", self._name)
        try:
            _ip("-n", self._name, "link", "set", "lo", "up")
            _ip("netns", "exec", self._name, "true")
        except BaseException:
            self.remove()
            raise

    def command(self, *command: object) -> list[object]:
        """What runs a command in there."""
        return ["ip", "netns", "exec", self._name, *command]

    def remove(self) -> None:
        """Once more does no harm."""
        subprocess.run(["ip", "netns", "delete", self._name], stderr=subprocess.DEVNULL, check=False)


def why_not() -> str:
    """Why there can be no two nodes on this machine; empty if there can."""
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            return "no program %r (Debian: iproute2, util-linux)" % tool
    try:
        nodes = Nodes()
    except subprocess.CalledProcessError as error:
        return "no namespaces: %s" % error.stderr.strip()
    try:
        # Mounting /proc may be denied where network namespaces are not.
        command = ["ip", "netns", "exec", nodes.names[0], *_UNSHARE, "true"]
        tried = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        return "no namespaces: %s" % tried.stderr.strip() if tried.returncode else ""
    finally:
        nodes.remove()


def _launcher(node: int, master: str) -> list[object]:
    options = ["--nnodes=2", "--node_rank=%d" % node, "--nproc_per_node=%d" % RANKS_PER_NODE]
    address = ["--master_addr=%s" % master, "--master_port=%d" % _PORT]
    return [sys.executable, "-m", "torch.distributed.run", *options, *address]


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout


def _remove_left_overs() -> None:
    """Of test runs that were killed."""
    for line in _ip("netns", "list").splitlines():
        name = line.split()[0]
        if name.startswith(_PREFIX) and not is_running(int(name[len(_PREFIX) :].split("-")[1])):
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)
