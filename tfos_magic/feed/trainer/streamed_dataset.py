"""A streamed feed as a ``tf.data.Dataset``: each iterator reads the rows anew, as its agent gets them from Spark."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import tensorflow as tf
from pyarrow import flight

from tfos_magic.columns.columns import decode_schema
from tfos_magic.columns.numpy_arrays import tensor_arrays
from tfos_magic.columns.row_buffer import RowBuffer
from tfos_magic.columns.selection import EVERYTHING, Selection
from tfos_magic.errors import FeedError
from tfos_magic.feed.access import bearer, socket_uri
from tfos_magic.feed.agent.flight_messages import decode_end, decode_error, encode_ticket
from tfos_magic.feed.row_assignment import BatchSizes
from tfos_magic.feed.trainer.elements import Elements, check_batch_size
from tfos_magic.feed.trainer.shuffle_order import ShuffledEpochs, shuffled
from tfos_magic.training.inputs.marks import mark_sharded
from tfos_magic.transport.messages import StreamHandle

Batches = Iterator[pa.RecordBatch]


def stream_dataset(
    handle: StreamHandle,
    *,
    batch_size: int,
    selection: Selection = EVERYTHING,
    shuffle: bool = False,
    seed: int = 0,
) -> tf.data.Dataset:
    """Give this rank's share of every global batch, as :func:`~tfos_magic.feed.trainer.spooled_dataset.feed_dataset`
    does.

    Batches are those of a spooled feed; only their number is not known beforehand. With ``shuffle`` rows change places
    within a window, as :func:`~tfos_magic.feed.trainer.shuffle_order.shuffled` says, with another order for every
    iterator; those of a query that runs are ``live`` and keep their order, for nobody knows when a window would be
    full.

    Reading raises :class:`DataError` and :class:`FeedError` for what went wrong with the feed.
    """
    check_batch_size(batch_size)
    elements = Elements(decode_schema(handle.schema), selection)
    shuffle = shuffle and not handle.live
    epochs = ShuffledEpochs()

    def epoch() -> Iterator[list[npt.NDArray[Any]]]:
        number = epochs.begin()
        sizes = BatchSizes(batch_size=batch_size, rank=handle.rank, world=handle.world)
        reader = _Reader(handle, number, elements.requested_columns, sizes)
        rows = reader.rows()
        mixed = shuffled(rows, seed=seed, rank=handle.rank, epoch=number) if shuffle else rows
        try:
            yield from map(tensor_arrays, _cut(mixed, reader.sizes, elements.schema))
        finally:
            reader.close()

    dataset = elements.dataset(epoch).prefetch(tf.data.AUTOTUNE)
    return mark_sharded(dataset, ends_alike=True, skip=epochs.skip, batch=batch_size)


class _Reader:
    """One epoch of a rank: its rows as they come, and the ``sizes`` of the batches that are complete by then."""

    def __init__(self, handle: StreamHandle, epoch: int, requested_columns: list[str], sizes: BatchSizes) -> None:
        self.sizes: deque[int] = deque()
        self._schema, self._requested_columns, self._known = decode_schema(handle.schema), requested_columns, sizes
        self._ticket = flight.Ticket(encode_ticket(handle.lease, epoch))
        self._options = flight.FlightCallOptions(headers=bearer(handle.token))
        self._client = flight.connect(socket_uri(handle.socket))
        self._stream: Any = None

    def rows(self) -> Batches:
        """Give this rank's rows in the DataFrame's order, in batches as they come."""
        with _explained():
            self._stream = self._client.do_get(self._ticket, self._options)
        while (chunk := self._next()) is not None:
            rows = decode_end(chunk.app_metadata)
            batch = pa.RecordBatch.from_arrays(chunk.data.columns, schema=self._schema).select(self._requested_columns)
            if rows is None:
                self.sizes.extend(self._known.dealt(batch.num_rows))
                yield batch
                continue
            mine, sizes = self._known.ended(rows)
            self.sizes.extend(sizes)
            if mine is not None:
                yield batch.slice(mine, 1)
        self.sizes.extend(self._known.finished())

    def close(self) -> None:
        """Let the agent know that nothing more is wanted."""
        with suppress(pa.ArrowException):  # a stream that has ended, or failed, cannot be cancelled
            if self._stream is not None:
                self._stream.cancel()
        self._client.close()

    def _next(self) -> Any:
        with _explained():
            try:
                return self._stream.read_chunk()
            except StopIteration:
                return None


class _explained:
    """Raises what the agent said instead of what Flight makes of it."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (pa.ArrowException, OSError)):
            reason = str(error).split(". Detail:")[0].split(". gRPC client debug")[0]
            cause = decode_error(getattr(error, "extra_info", None))
            raise cause or FeedError(f"cannot read from the worker's agent ({reason}): see %tfos logs") from None


def _cut(rows: Batches, sizes: deque[int], schema: pa.Schema) -> Batches:
    """Cut rows into batches of ``sizes``, which grows while rows are taken."""
    held = RowBuffer(schema)
    for batch in rows:
        held.put(batch)
        while sizes and sizes[0] <= held.rows:
            yield held.take(sizes.popleft())
    while sizes:
        yield held.take(sizes.popleft())
