"""Carries out for one call of OpenMMLab's ``init_dist`` what ``runtime.launch`` decides.

Upstream's function stays in charge. What it calls is exchanged for the duration of the call:
``set_device`` gets this rank's own index, and ``init_process_group`` the time limit. So a limit arrives
on every release and from every launcher, whatever upstream does with the argument: some pass it on as it
is, some take nothing but a number of seconds, and their Slurm launchers take none.
"""

from __future__ import annotations

import contextlib
import datetime
import inspect
import os
import shutil
import subprocess
import sys
from typing import Any, Callable, Dict, Optional, Tuple

from .. import console, parsers
from ..engine import ledger
from ..runtime import launch, limits, slurm, step_port
from ._exchange import exchanged

Function = Callable[..., Any]

_SCONTROL_SECONDS = 60.0  # it waits for Slurm's controller
_ACCELERATORS = ("cuda", "npu", "mlu", "musa")  # names below torch that upstream knows


class Launch:
    """One call of ``init_dist``."""

    def __init__(self, patch_id: str, target: str, original: Function, args: Any, keywords: Any) -> None:
        """Raises TypeError for arguments that upstream does not take."""
        self._id, self._target = patch_id, target
        self._bound = inspect.signature(original).bind(*args, **keywords)
        self._launcher = str(self._bound.arguments["launcher"])
        self._extra: Dict[str, Any] = dict(self._bound.arguments.get("kwargs", {}))
        self._limit: Optional[datetime.timedelta] = None
        self._local_rank: Optional[str] = None  # what LOCAL_RANK has to be
        self._take_limit()

    def _take_limit(self) -> None:
        given = self._extra.get("timeout")
        if given is None:
            return
        try:
            seconds = parsers.duration(given)
        except parsers.SettingError as error:
            console.warn_once("init_dist: timeout %r %s; upstream gets it as it is" % (given, error))
            return
        if self._bound.arguments.get("init_backend", "torch") == "torch":
            del self._extra["timeout"]
            self._limit = datetime.timedelta(seconds=seconds)
        else:
            self._extra["timeout"] = seconds  # deepspeed and colossalai: upstream makes a timedelta of it

    def arguments(self) -> Tuple[Any, Dict[str, Any]]:
        """What upstream's function gets."""
        if "kwargs" in self._bound.arguments:
            self._bound.arguments["kwargs"] = self._extra
        return self._bound.args, self._bound.kwargs

    def meet(self, stack: contextlib.ExitStack) -> None:
        """Agree with the other tasks of a Slurm step on a place, as far as upstream leaves that open.

        What it takes on rank 0 lasts until ``stack`` is closed.
        """
        if self._launcher != "slurm":
            return
        os.environ.update(launch.address_to_set(os.environ, shutil.which("scontrol") is not None))
        step = launch.open_step(os.environ, self._extra.get("port"))
        rank = slurm.number(os.environ.get("SLURM_PROCID"))
        if step is None or rank is None:
            return
        port = self._port_of_rank_0(step, stack) if rank == 0 else self._port_for_others(step)
        if port is not None:
            os.environ["MASTER_PORT"] = str(port)

    def _port_of_rank_0(self, step: slurm.Step, stack: contextlib.ExitStack) -> Optional[int]:
        try:
            place = step_port.Place(step)
        except OSError as error:
            console.warn(
                "the tasks of this Slurm step meet as without ddp_patches: none of the ports on which rank 0 "
                "would tell the others where (%s) is free on its host: %s"
                % (", ".join(map(str, slurm.beacon_ports(step))), error)
            )
            return None
        stack.callback(place.let_go)
        if place.port != step_port.UPSTREAMS_PORT:
            console.say(
                "port %d of this host is taken, so the tasks of this Slurm step meet on port %d, which only "
                "those with ddp_patches learn. MASTER_PORT sets one for all."
                % (step_port.UPSTREAMS_PORT, place.port)
            )
        return place.port

    def _port_for_others(self, step: slurm.Step) -> Optional[int]:
        host = os.environ.get("MASTER_ADDR") or _first_host()
        return step_port.Search(host, step, self._seconds()).port() if host else None

    def _seconds(self) -> float:
        """How long upstream lets the ranks wait for each other."""
        if self._limit is not None:
            return self._limit.total_seconds()
        if type(self._extra.get("timeout")) in (int, float):  # of deepspeed or colossalai
            return float(self._extra["timeout"])
        backend = self._bound.arguments.get("backend") or self._bound.signature.parameters["backend"].default
        return limits.torch_default(vars(sys.modules["torch"])["distributed"].distributed_c10d, str(backend))

    def exchange(self, stack: contextlib.ExitStack) -> bool:
        """Let what upstream calls get this rank's device and the limit, until ``stack`` is closed."""
        torch = sys.modules["torch"]
        for name in _ACCELERATORS:
            module = vars(torch).get(name)
            if callable(getattr(module, "set_device", None)):
                stack.enter_context(exchanged(module, "set_device", self._selecting(name, module)))
        distributed = vars(torch)["distributed"]
        init = self._initializing(vars(distributed)["init_process_group"])
        stack.enter_context(exchanged(distributed, "init_process_group", init))
        return True

    def check(self) -> None:
        """After upstream's function has returned: whether the limit has reached the group."""
        if self._limit is not None:
            console.warn_once("init_dist: upstream made the process group in a way that takes no timeout")

    def _selecting(self, name: str, module: Any) -> Function:
        upstream = vars(module)["set_device"]

        def own(device: Any) -> Any:
            if type(device) is not int:
                return device
            count = module.device_count()
            index = launch.device_index(self._launcher, device, os.environ, count)
            if launch.names_device_by_local_rank(self._launcher, os.environ, count):
                self._local_rank = str(index)
            if index != device:
                reason = "launcher %s: this rank uses %s:%d, upstream asked for %s:%d"
                ledger.record(
                    self._id, self._target, reason=reason % (self._launcher, name, index, name, device)
                )
            return index

        def set_device(device: Any, *args: Any, **keywords: Any) -> Any:
            return upstream(ledger.attempt(self._id, lambda: own(device), device), *args, **keywords)

        return set_device

    def _initializing(self, upstream: Function) -> Function:
        def init_process_group(*args: Any, **keywords: Any) -> Any:
            ledger.attempt(self._id, self._tell_device, None)
            if self._limit is not None:
                keywords.setdefault("timeout", self._limit)
                self._limit = None
            return upstream(*args, **keywords)

        return init_process_group

    def _tell_device(self) -> None:
        if self._local_rank is not None:  # late, because upstream's Slurm launchers write theirs
            os.environ["LOCAL_RANK"] = self._local_rank


def _first_host() -> str:
    """Where upstream looks for rank 0; empty if that is not known."""
    nodes = os.environ.get("SLURM_NODELIST", "")
    command = ["scontrol", "show", "hostname", nodes]
    try:
        said = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_SCONTROL_SECONDS, check=True
        )
        return said.stdout.decode().split()[0]
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError, IndexError):
        pass
    try:
        return slurm.first_host(nodes)
    except ValueError:
        return ""


def replacement_of(patch_id: str, target: str, original: Function) -> Function:
    """``init_dist`` with this rank's device, limit and meeting place."""

    def replacement(*args: Any, **keywords: Any) -> Any:
        return _run(patch_id, target, original, args, keywords)

    return replacement


def _run(patch_id: str, target: str, original: Function, args: Any, keywords: Any) -> Any:
    call = ledger.attempt(patch_id, lambda: Launch(patch_id, target, original, args, keywords), None)
    if call is None:
        return original(*args, **keywords)
    with contextlib.ExitStack() as stack:
        ledger.attempt(patch_id, lambda: call.meet(stack), None)
        if not ledger.attempt(patch_id, lambda: call.exchange(stack), False):
            return original(*args, **keywords)
        args, keywords = call.arguments()
        result = original(*args, **keywords)
    call.check()
    return result
