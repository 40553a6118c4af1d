"""Rows of Spark partitions as a program in a trainer takes them, and its answers on their way back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tfos_magic.errors import FeedError
from tfos_magic.feed.access import bearer, socket_uri
from tfos_magic.feed.agent.flight_messages import (
    LEAVE_ACTION,
    ROWS_SCHEMA,
    RowsCall,
    block_message,
    block_of,
    decode_error,
)
from tfos_magic.feed.row_blocks import decode_rows, encode_rows
from tfos_magic.transport.messages import RowsHandle


class RowFeed:
    """The queue ``name`` of the channel of ``handle``: rows in, answers out. For one thread."""

    def __init__(self, handle: RowsHandle, name: str) -> None:
        self._call = RowsCall(handle.channel, name)
        self._client = flight.connect(socket_uri(handle.socket))
        self._options = flight.FlightCallOptions(headers=bearer(handle.token))
        self._reader: Any = None
        self._writer: Any = None
        self._unanswered = 0

    def blocks(self) -> Iterator[list[Any]]:
        """Give the rows in blocks, an empty one at the end of a partition; waits for them, and ends with them.

        Raises :class:`FeedError` where the rows cannot come any more.
        """
        try:
            self._reader = self._client.do_get(flight.Ticket(self._call.encode()), self._options)
            for message in self._reader:
                rows, data = block_of(message.data)
                yield decode_rows(data) if rows else []
        except (pa.ArrowException, OSError) as error:
            raise decode_error(getattr(error, "extra_info", None)) or FeedError(
                f"this program cannot receive any more rows ({error})"
            ) from error

    def note_given(self, rows: int) -> None:
        """The program has so many more rows, and may answer them."""
        self._unanswered += rows

    def answer(self, results: Sequence[Any]) -> None:
        """Send the answers to the next rows, one for each. Raises :class:`FeedError` where there are too many."""
        if len(results) > self._unanswered:
            raise FeedError(
                f"batch_results() got {len(results)} results, but only {self._unanswered} rows are unanswered: give "
                "one result for each row of next_batch()"
            )
        self._unanswered -= len(results)
        self._send(len(results), encode_rows(list(results)))

    def go_on(self) -> None:
        """The program has come to the end of a partition and goes on: answers that are missing do not come."""
        if self._unanswered:
            self._unanswered = 0
            self._send(0, b"")

    def _send(self, rows: int, data: bytes) -> None:
        if self._writer is None:
            descriptor = flight.FlightDescriptor.for_command(self._call.encode())
            self._writer, _ = self._client.do_put(descriptor, ROWS_SCHEMA, self._options)
        self._writer.write_batch(block_message(rows, data))

    def close(self) -> None:
        """Read no more: what waits, and what comes, is dropped."""
        with suppress(pa.ArrowException, OSError):
            if self._writer is not None:
                self._writer.close()
            if self._reader is not None:
                self._reader.cancel()
        self._client.close()


def leave(handle: RowsHandle) -> None:
    """The program has ended: nobody waits for it any more."""
    with suppress(pa.ArrowException, OSError), flight.connect(socket_uri(handle.socket)) as client:
        options = flight.FlightCallOptions(timeout=10, headers=bearer(handle.token))
        list(client.do_action(flight.Action(LEAVE_ACTION, handle.channel.encode()), options))
