"""Why a job that stands still is to end, once all ranks are to know: written once, read by all."""

from __future__ import annotations

from .. import console
from . import news
from .client import Client

_KEY = "verdict"


def give(client: Client, reason: str) -> None:
    """All ranks are to end; ``reason``: sentences for people. The first one counts."""
    news.put(client, _KEY, reason)


def read(client: Client) -> str:
    """The reason, ``""`` as long as there is none."""
    return console.printable(client.take(_KEY))


def sentence(reason: str) -> str:
    """What a rank says that ends for it."""
    return "this rank ends, since the job stands still. %s" % reason
