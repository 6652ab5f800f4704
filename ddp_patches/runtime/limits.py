"""The limits of this process's groups, and how they are chosen.

``init_process_group(timeout=T)`` uses T three times: for the meeting of the ranks, for the store and
for the collectives. Only the last is raised: a node that never comes must not cost two hours.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional

_DEFAULT_SECONDS = 1800.0


@dataclasses.dataclass(frozen=True)
class Decision:
    """Seconds for the meeting (None: the caller gave none, leave it to torch) and for collectives."""

    join: Optional[float]
    collectives: Optional[float]  # None: leave the group as the caller made it
    caller: float  # what would be in force without us
    set_by: str


def decide(caller: Optional[float], torch_default: float, floor: Optional[float]) -> Decision:
    """The limits of the default group.

    ``caller``: seconds that were passed, None if none were. ``floor``: the setting ``timeout``, None
    for ``keep``. A caller's longer limit is never shortened, a shorter one is raised for collectives
    alone.
    """
    own = torch_default if caller is None else caller
    by = "torch's default" if caller is None else "the caller"
    if floor is None or own >= floor:
        return Decision(caller, None, own, by)
    return Decision(caller, floor, own, "ddp_patches (setting timeout; %s: %gs)" % (by, own))


def decide_subgroup(caller: Optional[float], torch_default: float, floor: Optional[float]) -> Decision:
    """The limit of a group made by ``new_group``: an explicit one is kept, a missing one is the floor.

    Without us torch gives the subgroup its backend's default, however long the default group's is.
    """
    if caller is not None:
        return Decision(caller, None, caller, "the caller")
    return decide(None, torch_default, floor)


def torch_default(distributed_c10d: Any, backend: Optional[str]) -> float:
    """Seconds that this torch gives to a group of ``backend`` when no timeout is passed."""
    name = "default_pg_nccl_timeout" if "nccl" in str(backend or "").lower() else "default_pg_timeout"
    found = getattr(distributed_c10d, name, None) or getattr(distributed_c10d, "default_pg_timeout", None)
    return found.total_seconds() if found is not None else _DEFAULT_SECONDS


_groups: List[Dict[str, Any]] = []
_notes: List[str] = []
_revision = 0


def record_group(name: str, backend: str, decision: Decision) -> None:
    """Remember which limit is in force for a group, and who set it."""
    global _revision
    _revision += 1
    seconds = decision.caller if decision.collectives is None else decision.collectives
    _groups.append(
        {
            "group": name,
            "backend": backend,
            "timeout": seconds,
            "join_timeout": decision.caller,
            "set_by": decision.set_by,
        }
    )


def own_limit() -> float:
    """Seconds after which the default group would give up without us; torch's default if unknown."""
    return float(_groups[0]["join_timeout"]) if _groups else _DEFAULT_SECONDS


def is_raised() -> bool:
    """Whether the default group's limit is longer than its caller's."""
    return bool(_groups) and _groups[0]["timeout"] > _groups[0]["join_timeout"]


def in_force() -> Optional[float]:
    """Seconds of the default group's limit; None if unknown."""
    return float(_groups[0]["timeout"]) if _groups else None


def note(text: str) -> None:
    """Remember a change to a variable, for ``status``."""
    global _revision
    if text not in _notes:
        _revision += 1
        _notes.append(text)


def forget_groups() -> None:
    """The groups have been destroyed."""
    del _groups[:]


def revision() -> int:
    """A number that grows with every group and every note."""
    return _revision


def snapshot() -> Dict[str, Any]:
    """``{"groups": [{group, backend, timeout, join_timeout, set_by}], "changes": [sentence]}``, seconds."""
    return {"groups": [dict(group) for group in _groups], "changes": list(_notes)}
