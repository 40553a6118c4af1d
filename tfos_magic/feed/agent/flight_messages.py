"""What is said at an agent's door for rows, beside the rows: what a call brings or wants, ends, and errors."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from tfos_magic.errors import DataError, FeedError, SpoolFull, TFOSError
from tfos_magic.feed.agent.stream_parts import Superseded

FAIL_ACTION, LEAVE_ACTION = "fail-feed", "leave-rows"


@dataclass(frozen=True)
class PutCommand:
    """What a ``DoPut`` call brings."""

    feed_id: str
    partition: int
    attempt: int

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, command: bytes | None) -> PutCommand:
        try:
            fields = json.loads(command or b"")
            return cls(str(fields["feed_id"]), int(fields["partition"]), int(fields["attempt"]))
        except (ValueError, KeyError, TypeError):
            raise FeedError(
                "a stream of rows has no feed, partition and attempt: it is not a feed of tfos_magic"
            ) from None


def encode_ticket(lease: str, epoch: int) -> bytes:
    """Give the ticket by which a trainer reads one epoch of a streamed feed."""
    return json.dumps({"lease": lease, "epoch": epoch}).encode()


def decode_ticket(ticket: bytes) -> tuple[str, int]:
    """Read what :func:`encode_ticket` gave."""
    try:
        fields = json.loads(ticket)
        return str(fields["lease"]), int(fields["epoch"])
    except (ValueError, KeyError, TypeError):
        raise FeedError("a reader sent no lease and epoch: it is not a trainer of tfos_magic") from None


def encode_end(rows: int) -> bytes:
    """Give what accompanies the last message of a partition of ``rows`` rows, whose batch is the partition's tail."""
    return json.dumps({"rows": rows}).encode()


def decode_end(metadata: Any) -> int | None:
    """Read what :func:`encode_end` gave; ``None`` for a message that is not the last."""
    return None if metadata is None else int(json.loads(metadata.to_pybytes())["rows"])


def encode_error(error: TFOSError) -> bytes:
    """Give an error as bytes that cross Flight beside the message gRPC makes of it."""
    return json.dumps({"kind": type(error).__name__, "message": str(error)}).encode()


def error_of(kind: str, message: str) -> DataError | FeedError:
    """Make an error of a feed anew from the name of its class and its text."""
    known: dict[str, type[DataError | FeedError]] = {kind.__name__: kind for kind in (DataError, SpoolFull, Superseded)}
    return known.get(kind, FeedError)(message)


def decode_error(info: bytes | None) -> TFOSError | None:
    """Read what :func:`encode_error` gave; ``None`` for anything else."""
    try:
        fields = json.loads(info or b"")
        return error_of(fields["kind"], str(fields["message"]))
    except (ValueError, KeyError, TypeError):
        return None


def reason_of(error: Exception) -> str:
    """What an error of a call says, without what Flight and gRPC add to it."""
    return str(error).split(". Detail:")[0].split(". gRPC client debug")[0]


@dataclass(frozen=True)
class RowsCall:
    """What a call about a queue of a row channel is for: rows of a task that waits ``timeout`` seconds at most, and for
    ``answers`` where it says so."""

    channel: str
    queue: str
    timeout: float = 0.0
    answers: bool = False

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, command: bytes | None) -> RowsCall | None:
        """Read what :meth:`encode` gave; None for anything else."""
        try:
            fields = json.loads(command or b"")
            return cls(
                str(fields["channel"]), str(fields["queue"]), float(fields["timeout"]), fields["answers"] is True
            )
        except (ValueError, KeyError, TypeError):
            return None


ROWS_SCHEMA = pa.schema([("rows", pa.int64()), ("data", pa.large_binary())])
"""Of blocks of rows: how many, and their bytes; one message for each."""


def block_message(rows: int, data: bytes | pa.Buffer) -> pa.RecordBatch:
    """A block of rows as its message."""
    column = pa.Array.from_buffers(
        pa.large_binary(), 1, [None, pa.array([0, len(data)], pa.int64()).buffers()[1], pa.py_buffer(data)]
    )
    return pa.record_batch([pa.array([rows], pa.int64()), column], schema=ROWS_SCHEMA)


def block_of(message: pa.RecordBatch) -> tuple[int, bytes]:
    """What :func:`block_message` took. Raises :class:`FeedError` for a message that is none."""
    if message.schema != ROWS_SCHEMA or message.num_rows != 1:
        raise FeedError("this is not a block of rows: it is not a feed of tfos_magic")
    return int(message.column(0)[0].as_py()), message.column(1)[0].as_py()
