"""What the kernel and the agents tell each other about the rows of DataFrames."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfos_magic.columns.selection import EVERYTHING, Selection
from tfos_magic.transport.messages.message import Message


@dataclass(frozen=True)
class FeedEndpoint:
    """Where an agent takes rows: over TLS at ``uri``, with the certificate of ``name``, and on its own host, the one of
    ``host_id``, at the path ``socket``."""

    uri: str
    name: str
    socket: str = ""
    host_id: str = ""


@dataclass(frozen=True)
class SpoolHandle:
    """The rows of a committed feed in the spool of the agent of ``rank``, one of ``world``.

    ``path`` is the spool's file, which begins with ``mark`` (hexadecimal) while the rows are there. ``schema`` is
    settled; ``blocks`` are ``[offset, bytes, first row, rows]``, ``partitions`` ``[number, rows]`` of the DataFrame.
    """

    path: str
    mark: str
    schema: str
    blocks: list[list[int]]
    partitions: list[list[int]]
    rank: int
    world: int


@dataclass(frozen=True)
class StreamHandle:
    """A lease of a streamed feed, whose ``schema`` is settled, for ``world`` ranks; rows of a query that runs are
    ``live``. The agent adds the ``rank``, and ``socket`` and ``token`` of its Flight server."""

    lease: str
    schema: str
    world: int
    live: bool = False
    rank: int = 0
    socket: str = ""
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class RowsHandle:
    """The row ``channel`` of a program, and the ``socket`` and ``token`` of the Flight server of its agent."""

    channel: str
    socket: str
    token: str = field(repr=False)


@dataclass(frozen=True)
class FeedUse:
    """How a cell reads a DataFrame: in global batches of ``batch_size`` rows of the ``selection``. ``mark`` tells its
    rows from others. The agent adds where they are: ``spool``, or to ``stream``."""

    feed_id: str
    batch_size: int
    selection: Selection = EVERYTHING
    shuffle: bool = False
    seed: int = 0
    mark: list[int] = field(default_factory=list)
    spool: SpoolHandle | None = None
    stream: StreamHandle | None = None

    @property
    def schema(self) -> str:
        """The settled Arrow schema of its rows, as base64 of its IPC form."""
        handle = self.spool or self.stream
        assert handle is not None
        return handle.schema


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
    """Take the rows of one epoch of a streamed feed; without ``keep_rows``, forget them. ``schema`` is settled.

    Of ``live`` rows ``ConfirmStream`` tells how many have been sent. The answer is ``FeedOpened`` of ``stream``.
    """

    stream: str
    rank: int
    world: int
    schema: str
    keep_rows: bool = True
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
class FeedRecomputed(Message):
    """A task of a streamed feed was tried again and sent other rows than those that the trainer has had of it."""

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
