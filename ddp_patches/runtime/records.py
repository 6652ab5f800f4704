"""What each rank tells the others about itself: JSON of bounded size, checked when it is read."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .. import __version__, settings
from . import identity, limits

# Ranks with different numbers do not understand each other's counters; see zero_first.
PROTOCOL = 1
_LONGEST_TEXT = 300  # characters of one field; tracebacks and long reasons stay in their process

Record = Dict[str, Any]


def build(
    rank: int,
    world_size: int,
    packages: Mapping[str, str],
    patches: Sequence[Mapping[str, Any]],
    device: str = "",
) -> Record:
    """This rank's record.

    ``packages``: import name and version of the frameworks that this process has imported;
    ``patches``: rows of the ledger; ``device``: see :func:`current_device`.
    """
    kept = ("id", "state", "verdict", "reason", "package", "version", "target", "call_failures")
    return {
        "rank": rank,
        "local_rank": _int(identity.local_rank_of(os.environ), rank),
        "world_size": world_size,
        "host": socket.gethostname(),
        "node": identity.node_key(),
        "pid": os.getpid(),
        "started": identity.start_time(os.getpid()),
        "python": platform.python_version(),
        "ddp_patches": __version__,
        "protocol": PROTOCOL,
        "settings": settings.current().agreement(),
        "settings_hash": settings.current().agreement_hash(),
        "packages": dict(packages),
        "device": device,
        "limits": limits.snapshot(),
        "patches": [{name: _short(row.get(name, "")) for name in kept} for row in patches],
    }


def _int(value: Optional[int], default: int) -> int:
    return default if value is None else value


def _short(value: Any) -> Any:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else value


def current_device() -> str:
    """``"cuda:1 (of 0,1,2,3)"`` if this thread's process already uses one; looking must not start CUDA.

    For the main thread: the current device of any other one is 0.
    """
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return "cuda:%d%s" % (cuda.current_device(), " (of %s)" % visible if visible else "")


def dump(record: Record) -> str:
    """A record as the text that goes into the store."""
    return json.dumps(record)


def load(text: str, rank: int) -> Optional[Record]:
    """A peer's record, None if it is not one: what a peer sends is checked, never executed."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("rank") != rank:
        return None
    wanted = {"local_rank": int, "host": str, "node": str, "pid": int, "started": str, "protocol": int,
              "settings": dict, "settings_hash": str, "packages": dict, "patches": list}  # fmt: skip
    if not all(isinstance(record.get(name), kind) for name, kind in wanted.items()):
        return None
    if any(len(record[name]) > _LONGEST_TEXT for name, kind in wanted.items() if kind is str):
        return None
    rows = record["patches"]
    return record if all(isinstance(row, dict) and _is_row(row) for row in rows) else None


def _is_row(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("id"), str) and isinstance(row.get("state"), str)


def can_act(record: Record, patch_id: str) -> bool:
    """Whether the rank of ``record`` has the patch in place, or will have when its target is imported."""
    states = [row.get("state") for row in record["patches"] if row.get("id") == patch_id]
    return any(state in ("applied", "waiting") for state in states)


def disagreement(found: Mapping[int, Record], world_size: int, patch_id: str) -> Optional[str]:
    """Why the ranks cannot act together on a patch, as a phrase for people; None if they can."""
    missing = [rank for rank in range(world_size) if rank not in found]
    if missing:
        return "%s without ddp_patches" % ranks_phrase(missing, verb=True)
    first = found[0]
    for rank in range(1, world_size):
        other = found[rank]
        if other["protocol"] != first["protocol"]:
            return "rank 0 (%s) has protocol %s, rank %d (%s) has %s" % (
                first["host"], first["protocol"], rank, other["host"], other["protocol"]
            )  # fmt: skip
        if other["settings_hash"] != first["settings_hash"]:
            return "the settings differ between rank 0 (%s) and rank %d (%s): %s" % (
                first["host"], rank, other["host"], settings_difference(first["settings"], other["settings"])
            )  # fmt: skip
    without = [rank for rank in range(world_size) if not can_act(found[rank], patch_id)]
    if without:
        return "%s not applied on %s" % (patch_id, ranks_phrase(without))
    return None


def settings_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """``timeout 7200.0 and 3600.0``, for each setting that differs."""
    names = [name for name in sorted(set(one) | set(other)) if one.get(name) != other.get(name)]
    text = "; ".join("%s %s and %s" % (name, one.get(name), other.get(name)) for name in names)
    return text[:_LONGEST_TEXT]


def ranks_phrase(ranks: Sequence[int], verb: bool = False) -> str:
    """``rank 3``, ``ranks 1-3, 7``; with ``verb`` followed by ``is`` or ``are``."""
    runs: List[List[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = ["%d" % run[0] if len(run) == 1 else "%d-%d" % (run[0], run[-1]) for run in runs]
    word = "rank" if len(ranks) == 1 else "ranks"
    is_are = (" is" if len(ranks) == 1 else " are") if verb else ""
    return "%s %s%s" % (word, ", ".join(texts), is_are)


def shared_devices(found: Mapping[int, Record]) -> List[str]:
    """A sentence for each GPU of a node that more than one rank has taken."""
    owners: Dict[Any, List[int]] = {}
    for rank, record in sorted(found.items()):
        if record.get("device"):
            owners.setdefault((record["node"], record["host"], str(record["device"])), []).append(rank)
    return [
        "%s of %s share %s; NCCL hangs or fails on that" % (ranks_phrase(ranks), host, device)
        for (_, host, device), ranks in owners.items()
        if len(ranks) > 1
    ]
