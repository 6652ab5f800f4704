"""The fixture that starts jobs of real ranks."""

from support.jobs import jobs

__all__ = ["jobs"]
