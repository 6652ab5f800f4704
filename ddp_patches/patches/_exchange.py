"""For patches that leave upstream's function in charge and exchange what it calls."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator


@contextlib.contextmanager
def exchanged(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner.name`` is ``value`` for a while; what somebody else puts there meanwhile stays."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        if vars(owner).get(name) is value:
            setattr(owner, name, before)
