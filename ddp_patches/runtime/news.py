"""One counter in the job's store for all that a rank must hear of, so that one request asks for all of it."""

from __future__ import annotations

from .client import Client

_KEY = "news"


def count(client: Client) -> int:
    """How much news there has been."""
    return client.add(_KEY, 0)


def add(client: Client) -> None:
    """There is news; what it is has been written before."""
    client.add(_KEY, 1)


def put(client: Client, key: str, text: str) -> str:
    """Write what is news unless somebody has written already; returns what counts for all ranks."""
    written = client.first(key, text[:4000])
    add(client)
    return written
