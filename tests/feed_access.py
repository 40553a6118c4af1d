"""What opens the doors of agents in tests without a cluster: a token, and an identity of an authority of their own."""

from __future__ import annotations

from functools import cache

from tfos_magic.feed.access import FeedAccess
from tfos_magic.transport.identity import Authority, worker_name

TOKEN = "the-right-token"


@cache
def feed_access() -> FeedAccess:
    """The same in every call, for both ends."""
    return FeedAccess(TOKEN, Authority().identify(worker_name(0)))
