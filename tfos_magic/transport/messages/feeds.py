"""What the kernel and the agents tell each other about the rows of DataFrames."""

from __future__ import annotations

from dataclasses import dataclass

from tfos_magic.transport.messages.message import Message


@dataclass(frozen=True)
class OpenFeed(Message):
    """Make room in the spool for a feed; ``schema`` is an Arrow schema as base64 of its IPC form."""

    feed_id: str
    rank: int
    world: int
    schema: str


@dataclass(frozen=True)
class FeedOpened(Message):
    """An agent's answer to ``OpenFeed``: rows may come now, or why they may not."""

    feed_id: str
    error: str = ""


@dataclass(frozen=True)
class CommitFeed(Message):
    """All rows are sent: keep these ``(partition, attempt, rows)`` of the whole DataFrame, drop other attempts.

    ``schema`` is that of ``OpenFeed``, and tells the shapes of lists.
    """

    feed_id: str
    partitions: list[list[int]]
    schema: str = ""


@dataclass(frozen=True)
class FeedAttached(Message):
    """An agent's answer to ``CommitFeed``: what its spool holds of the feed, or why it cannot serve it."""

    feed_id: str
    rows: int
    bytes: int
    error: str = ""


@dataclass(frozen=True)
class NeedRoom(Message):
    """The rows of a feed wait, for the agent's budget is spent by the feeds that it ``held`` when it said so."""

    feed_id: str
    held: list[str]


@dataclass(frozen=True)
class RefuseFeed(Message):
    """There is no room for a feed, and none will be made: its tasks are to end."""

    feed_id: str
    reason: str


@dataclass(frozen=True)
class OpenStream(Message):
    """Take the rows of one epoch of a streamed feed; where it is not ``wanted``, forget them. ``schema`` is settled.

    Of ``live`` rows ``ConfirmStream`` tells how many have been sent. The answer is ``FeedOpened`` of ``stream``.
    """

    stream: str
    rank: int
    world: int
    schema: str
    wanted: bool = True
    live: bool = False


@dataclass(frozen=True)
class FeedWanted(Message):
    """A trainer begins to read an epoch of a streamed feed."""

    lease: str
    epoch: int


@dataclass(frozen=True)
class FeedDropped(Message):
    """A trainer has stopped reading an epoch of a streamed feed before its end."""

    lease: str
    epoch: int


@dataclass(frozen=True)
class ConfirmStream(Message):
    """So many partitions of live rows have been sent to all workers."""

    stream: str
    partitions: int


@dataclass(frozen=True)
class EndStream(Message):
    """All rows of an epoch are sent, in so many partitions; or none will come any more, for ``error``, of ``kind``."""

    stream: str
    partitions: int
    kind: str = ""
    error: str = ""


@dataclass(frozen=True)
class ReleaseFeed(Message):
    """Forget a feed, or a lease with its streams, and give the disk space back. Unknown ones are ignored."""

    feed_id: str
