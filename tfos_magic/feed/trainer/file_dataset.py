"""``tfos.dataset``: files read in place by the workers, each its share of every global batch."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tensorflow as tf

from tfos_magic.columns.arrow import WireConverter
from tfos_magic.columns.columns import FeedPlan
from tfos_magic.columns.file_types import plain_batch, plan_files
from tfos_magic.columns.list_lengths import settle
from tfos_magic.columns.missing import Missing
from tfos_magic.columns.numpy_arrays import tensor_arrays
from tfos_magic.columns.selection import Selection
from tfos_magic.errors import ClusterError, DataError, TFOSError
from tfos_magic.feed.trainer.elements import Elements, check_batch_size, held_weakly
from tfos_magic.feed.trainer.shuffle_order import ShuffledEpochs, shuffled
from tfos_magic.files.file_sharding import FileShares, in_order, in_runs, overlaps, recut, unit_order
from tfos_magic.files.file_source import FileSource, Unit
from tfos_magic.files.opening import open_source
from tfos_magic.spark.locations import absolute_path
from tfos_magic.training import ranks
from tfos_magic.training.inputs.marks import mark_sharded

READERS = 8


def dataset(
    path: str | Sequence[str],
    format: str | None = None,
    *,
    batch_size: int,
    features: Sequence[str] | None = None,
    label: str | None = None,
    weight: str | None = None,
    matrix: bool = False,
    shuffle: bool = True,
    seed: int | None = None,
    schema: Any = None,
    fill: Any = None,
    pad: Any = None,
    null_mask: Sequence[str] = (),
    **options: Any,
) -> tf.data.Dataset:
    """Give this worker's share of files on local disks, HDFS or object stores, as batches for ``fit``.

    ``path`` is a file, a folder (with what lies below it), a glob, or several; :func:`absolute_path` says what a path
    without a scheme means. Every worker must find the same files there. ``format`` is ``"parquet"``, ``"tfrecord"``
    (options ``compression``, ``record_type``), or ``"csv"`` (``compression``, ``delimiter``, ``column_names``,
    ``encoding``);
    without it the names of the files tell (``.csv``, ``.tfrecords.gz``), and Parquet is known by how it begins too.
    ``schema`` gives the types of TFRecord and CSV columns, which are inferred otherwise. Elements are those of a fed
    DataFrame: ``(features, label, weight)`` as far as these are named, one tensor for one feature and a dict for
    several, or one float32 ``matrix``; else a dict of all columns; ``fill``, ``pad`` and ``null_mask`` are those of
    ``%%tfos_train``. Lists are as long as the first rows have them; where those differ they are ragged.

    Folders such as ``day=3`` below ``path``, as Spark's ``partitionBy`` makes them, are columns, in the types that
    Spark infers for them (but timestamps are local ones) or ``schema`` gives. Where the files have a column of that
    name too, the folder's value counts, as in Spark.

    ``batch_size`` is that of the global batch, of which a worker gets its part, maybe of no rows. The workers together
    read every row once in an epoch, and all have ``ceil(rows / batch_size)`` steps. What a global batch holds:

    * ``shuffle=False``: batch ``k`` is rows ``[k*batch_size, (k+1)*batch_size)`` of the files, sorted by name, as one
      plain process would take them. For that, every worker reads and decodes all files.
    * by default every worker reads row groups of Parquet, runs of TFRecords or CSV files that no other worker reads
      (but for one at each end of its share): these come in a random order, each worker takes an equal run of rows,
      shuffled within windows of 16,384 rows or 64 MB, and a batch has rows of all runs. The order is new in every
      epoch, and follows from the files, ``seed`` (default: the run's) and the number of workers. ``sync`` training is
      equal to one process that reads the batches so composed, not to one that shuffles by itself.

    Outside of a run, one process reads all. Raises :class:`DataError` for files that are not there, that differ in
    their columns, or that workers see differently, naming them.
    """
    check_batch_size(batch_size)
    if seed is not None and (not isinstance(seed, int | np.integer) or seed < 0):
        raise DataError(f"the seed is {seed!r}: give a whole number from 0")
    paths = [absolute_path(one) for one in ([path] if isinstance(path, str) else path)]
    rank, world = ranks.place()
    selection = Selection.of(features, label, weight, matrix)

    def look(first: int, step: int) -> _Found:
        source = open_source(paths, format, schema, **options)
        plan = plan_files(source.schema, selection, Missing.of(fill, pad, null_mask))
        return _Found(source, plan, _count(source, plan.sources, features is None and schema is None, first, step))

    source, plan, units = _agreed(look)
    total = sum(unit.rows for unit in units)
    if not total:
        raise DataError(f"{', '.join(map(repr, paths))}: the files have no rows")
    divide = in_runs if shuffle else in_order
    shares = divide(total, batch_size=batch_size, rank=rank, world=world)
    order = (ranks.seed() if seed is None else seed) if shuffle else None
    reader = _Reader(source, plan, units, shares, rank, order)
    sizes = shares.sizes
    common = int(sizes[0]) if (sizes == sizes[0]).all() else None
    elements = Elements(reader.schema, replace(selection, features=None), common)
    alive = held_weakly(reader, "these files")
    steps = elements.dataset(lambda: alive().epoch(elements.requested_columns))
    dataset = steps.apply(tf.data.experimental.assert_cardinality(len(sizes))).prefetch(tf.data.AUTOTUNE)
    dataset._tfos_reader = reader
    return mark_sharded(dataset, skip=reader.epochs.skip, by_rank=not shuffle, by_world=shuffle, batch=batch_size)


class _Reader:
    """Reads a rank's share, epoch after epoch. Thread-safe: several iterators may read at once."""

    def __init__(
        self, source: FileSource, plan: FeedPlan, units: list[Unit], shares: FileShares, rank: int, seed: int | None
    ) -> None:
        self._source, self._plan, self._units = source, plan, units
        self._rank, self._seed = rank, seed
        self.shares = shares
        self.schema = _settled(source, plan, units)
        self.epochs = ShuffledEpochs()

    def epoch(self, requested_columns: list[str]) -> Iterator[list[npt.NDArray[Any]]]:
        """Give the arrays of the columns ``requested_columns`` of every step of the next epoch."""
        epoch = self.epochs.begin()
        rows = self._rows(epoch)
        if self._seed is not None:
            rows = shuffled(rows, seed=self._seed, rank=self._rank, epoch=epoch)
        steps = 0
        for batch in recut(rows, self.shares.sizes.tolist(), self.schema):
            steps += 1
            yield tensor_arrays(batch.select(requested_columns))
        if steps < len(self.shares.sizes):
            raise DataError("the files have fewer rows than before: they were rewritten; run the cell again")

    def _rows(self, epoch: int) -> Iterator[pa.RecordBatch]:
        """This rank's rows in the order of the epoch's units; units without any are not opened."""
        units = self._units
        if self._seed is not None:
            units = [units[index] for index in unit_order(len(units), self._seed, epoch)]
        first = 0
        for unit in units:
            if row_ranges := overlaps(self.shares, first, unit.rows):
                with closing(self._read(unit, first, row_ranges[-1][1])) as batches:
                    yield from batches
            first += unit.rows

    def _read(self, unit: Unit, first: int, end: int) -> Generator[pa.RecordBatch, None, None]:
        """This rank's rows of a unit, whose first row is number ``first``; it has none from row ``end`` of it on."""
        converter = WireConverter(self._plan, self.schema)
        at = 0
        for batch in self._source.read(unit, self._plan.sources):
            for start, stop in overlaps(self.shares, first + at, batch.num_rows):
                yield _wire(converter, batch.slice(start, stop - start), self._plan, unit)
            at += batch.num_rows
            if at >= end:
                return


@dataclass(frozen=True)
class _Found:
    """What a rank found: the files, and the units that it counted, int64 rows of ``(file, start, stop, rows)``."""

    source: FileSource
    plan: FeedPlan
    table: npt.NDArray[np.int64]

    @property
    def mark(self) -> int:
        """A number that tells one list of files, with their sizes and columns, from another."""
        descriptions = [f"{file.url} {file.bytes}" for file in self.source.files]
        return zlib.crc32("\n".join([*descriptions, str(self.source.schema)]).encode())


def _agreed(look: Callable[[int, int], _Found]) -> tuple[FileSource, FeedPlan, list[Unit]]:
    """Look at the files, each rank at some of them where ranks meet in this run; gives all units on every rank.

    Where one fails, the others raise :class:`ClusterError`, for its own error is the one to tell. Raises
    :class:`DataError` on all ranks where one finds other files than the rest.
    """
    peers = ranks.peers()
    if peers is None:
        inventory = look(0, 1)
        return inventory.source, inventory.plan, _units(inventory.source, inventory.table)
    try:
        inventory = look(peers.rank, peers.size)
    except Exception:
        peers.gather([1, 0])
        raise
    marks = peers.gather([0, inventory.mark])
    if failed := np.flatnonzero(marks[:, 0]).tolist():
        raise ClusterError(f"rank {failed[0]} cannot read the files: see its own error")
    if others := np.flatnonzero(marks[:, 1] != marks[0, 1]).tolist():
        raise DataError(
            f"ranks 0 and {others[0]} find different files under the same path: put them where all workers see the "
            "same ones, on HDFS, an object store or a shared disk"
        )
    (table,) = peers.concat([tf.constant(inventory.table)])
    return inventory.source, inventory.plan, _units(inventory.source, np.asarray(table))


def _wire(converter: WireConverter, batch: pa.RecordBatch, plan: FeedPlan, unit: Unit) -> pa.RecordBatch:
    try:
        return converter.convert(plain_batch(batch, plan.sources))
    except TFOSError as error:
        raise DataError(f"{unit.file.url}: {error}") from error


def _settled(source: FileSource, plan: FeedPlan, units: list[Unit]) -> pa.Schema:
    """The wire schema with the lengths of lists as the first rows have them that have some in all columns."""
    converter = WireConverter(plan)
    for unit in (unit for unit in units if unit.rows):
        with closing(source.read(unit, plan.sources)) as batches:
            for batch in batches:
                _wire(converter, batch, plan, unit)
                if all(most > 0 for ranges in converter.widths.seen.values() for _, most in ranges):
                    return settle(converter.schema, converter.widths)
    return settle(converter.schema, converter.widths)


def _count(source: FileSource, names: Sequence[str], whole: bool, first: int, step: int) -> npt.NDArray[np.int64]:
    """The units of every ``step``-th file: int64, rows of ``(file, start, stop, rows)``."""
    numbers = range(first, len(source.files), step)
    with ThreadPoolExecutor(READERS, thread_name_prefix="tfos-count") as pool:
        counts = list(pool.map(lambda number: source.count(source.files[number], names, whole), numbers))
    units = [(number, *piece) for number, pieces in zip(numbers, counts, strict=True) for piece in pieces]
    return np.array(units, np.int64).reshape(-1, 4)


def _units(source: FileSource, table: npt.NDArray[np.int64]) -> list[Unit]:
    ordered = table[np.lexsort((table[:, 1], table[:, 0]))]
    return [Unit(source.files[file], *piece) for file, *piece in ordered.tolist()]
