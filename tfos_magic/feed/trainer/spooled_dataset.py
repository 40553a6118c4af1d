"""A feed as a ``tf.data.Dataset``: whole batches, read from the agent's spool where they lie."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfos_magic.columns.numpy_arrays import tensor_arrays
from tfos_magic.columns.selection import EVERYTHING, Selection
from tfos_magic.feed.row_assignment import batch_boundaries, row_numbers
from tfos_magic.feed.trainer.elements import Elements, check_batch_size, held_weakly
from tfos_magic.feed.trainer.row_gather import RowGather
from tfos_magic.feed.trainer.shuffle_order import Numbers, ShuffledEpochs, ShuffleOrder
from tfos_magic.feed.trainer.spooled_rows import SpooledRows
from tfos_magic.training.inputs.marks import mark_sharded
from tfos_magic.transport.messages import SpoolHandle

ORDERS_KEPT = 4


def feed_dataset(
    handle: SpoolHandle,
    *,
    batch_size: int,
    selection: Selection = EVERYTHING,
    shuffle: bool = False,
    seed: int = 0,
) -> tf.data.Dataset:
    """Give this rank's share of every global batch of ``batch_size`` rows, in the DataFrame's order or shuffled.

    ``handle`` is what :meth:`Spool.handle` gave. Elements are what the ``selection`` says. Scalars have the shape
    ``(rows,)``, lists of one length ``(rows, width)``, others are ragged, structs are dicts; a share may have 0 rows,
    and all ranks have ``ceil(total / batch_size)`` steps. The mapping of the file is closed with the dataset. Raises
    :class:`DataError` for a column the feed does not hold and :class:`FeedError` when the spool's file is gone.

    With ``shuffle`` every iterator that is read gives the rows of this rank in another order, as
    :class:`~tfos_magic.feed.trainer.shuffle_order.ShuffleOrder` says: the ``k``-th of this dataset, from 0, in that of
    epoch ``k``. Batches have as many rows as they have without.
    """
    check_batch_size(batch_size)
    rows = SpooledRows(handle)
    partitions = [(partition, count) for partition, count in handle.partitions]
    bounds = batch_boundaries(partitions, batch_size=batch_size, rank=handle.rank, world=handle.world)
    elements = Elements(rows.schema, selection, _common_size(bounds))
    batches = _Batches(rows, elements.requested_columns, bounds)
    if shuffle:
        batches = _ShuffledBatches(rows, elements.requested_columns, bounds, handle.rank, seed)
    dataset = _steps(batches, elements).prefetch(tf.data.AUTOTUNE)
    dataset._tfos_batches = batches

    def numbers() -> Callable[[int], Numbers]:
        row_indices, epoch = row_numbers(partitions, rank=handle.rank, world=handle.world), batches.epochs.next
        return lambda step: row_indices[batches.places(step, epoch)]

    return mark_sharded(dataset, skip=batches.epochs.skip, numbers=numbers, batch=batch_size)


class _Batches:
    """The columns that a dataset wants, and where its batches begin among this rank's rows."""

    shuffled = False

    def __init__(self, rows: SpooledRows, requested_columns: list[str], bounds: Numbers) -> None:
        self.rows, self.requested_columns, self.bounds = rows, requested_columns, bounds
        self.epochs = ShuffledEpochs()

    def begin(self) -> int:
        """Note that an iterator begins; gives the number of its epoch."""
        return 0

    def places(self, step: int, epoch: int) -> Numbers:
        """Give the places of a batch's rows among those of this rank."""
        return np.arange(self.bounds[step], self.bounds[step + 1])

    def read(self, step: int, epoch: int) -> list[npt.NDArray[Any]]:
        """Give a batch of an epoch; without shuffle all epochs are the same."""
        return tensor_arrays(self.rows.read(self.requested_columns, int(self.bounds[step]), int(self.bounds[step + 1])))


class _ShuffledBatches(_Batches):
    """Batches of as many rows, which are others in every epoch. Thread-safe: several iterators may read at once."""

    shuffled = True

    def __init__(self, rows: SpooledRows, requested_columns: list[str], bounds: Numbers, rank: int, seed: int) -> None:
        super().__init__(rows, requested_columns, bounds)
        self._gather = RowGather(rows, requested_columns)
        self._order = lru_cache(ORDERS_KEPT)(partial(_order, int(bounds[-1]), seed, rank))

    def begin(self) -> int:
        return self.epochs.begin()

    def places(self, step: int, epoch: int) -> Numbers:
        return self._order(epoch).numbers(int(self.bounds[step]), int(self.bounds[step + 1]))

    def read(self, step: int, epoch: int) -> list[npt.NDArray[Any]]:
        return self._gather.take(self.places(step, epoch))


def _order(rows: int, seed: int, rank: int, epoch: int) -> ShuffleOrder:
    return ShuffleOrder(rows, seed=seed, rank=rank, epoch=epoch)


def _steps(batches: _Batches, elements: Elements) -> tf.data.Dataset:
    """Give the batches one after another. An iterator gets its epoch with its first step, for some are never read."""
    alive = held_weakly(batches, "this feed")

    def fetch(step: npt.NDArray[np.int64], epoch: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
        return alive().read(int(step), int(epoch))

    @tf.autograph.experimental.do_not_convert
    def load(step: tf.Tensor, epoch: tf.Tensor | int = 0) -> Any:
        dtypes = [spec.dtype for spec in elements.specs]
        return elements.assembled(tf.numpy_function(fetch, [step, epoch], dtypes, stateful=False))

    @tf.autograph.experimental.do_not_convert
    def begin(_: tf.Tensor) -> tf.Tensor:
        epoch = tf.numpy_function(lambda: np.int64(alive().begin()), [], tf.int64)
        return tf.ensure_shape(epoch, ())

    @tf.autograph.experimental.do_not_convert
    def repeat(epoch: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(epoch).repeat(steps)

    steps = len(batches.bounds) - 1
    if not batches.shuffled:
        return tf.data.Dataset.range(steps).map(load)
    # Cheaper than a map inside of flat_map, by a third of what a batch costs without its rows.
    epochs = tf.data.Dataset.range(1).map(begin).flat_map(repeat)
    return epochs.enumerate().map(load).apply(tf.data.experimental.assert_cardinality(steps))


def _common_size(bounds: Numbers) -> int | None:
    """The number of rows that all batches have, or ``None`` where they differ."""
    sizes = np.diff(bounds)
    return int(sizes[0]) if len(sizes) and (sizes == sizes[0]).all() else None
