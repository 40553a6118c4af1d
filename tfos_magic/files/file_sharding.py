"""Which rows of a set of files make up each rank's part of each global batch. All ranks work out the same.

With *runs*, every rank reads rows that follow each other: rank ``r`` of ``N`` has ``ceil((T - r) / N)`` of the ``T``
rows, its run, and row ``j`` of the whole, as it is trained on, is row ``j // N`` of the run of rank ``j mod N``. So
each row is read once, by one rank, and the shares of every batch are equal to within a row. *In order*, global batch
``k`` holds rows ``[k*B, (k+1)*B)`` of the files, and every rank reads what lies between its own rows as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tfos_magic.columns.row_buffer import RowBuffer

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FileShares:
    """A rank's rows: ``starts[i]`` to ``stops[i]`` of all rows, in order, and how many of them each step takes.

    All are int64; ``sizes`` has the shape ``(steps,)``, the same on every rank.
    """

    starts: Numbers
    stops: Numbers
    sizes: Numbers


def in_runs(total: int, *, batch_size: int, rank: int, world: int) -> FileShares:
    """One run of rows for the rank."""
    sizes = [_dealt(total, each, world) for each in range(world)]
    start = sum(sizes[:rank])
    marks = _marks(total, batch_size)
    return FileShares(
        np.array([start], np.int64), np.array([start + sizes[rank]], np.int64), np.diff(_dealt(marks, rank, world))
    )


def in_order(total: int, *, batch_size: int, rank: int, world: int) -> FileShares:
    """The rank's slice ``[r*n//N, (r+1)*n//N)`` of the ``n`` rows of each global batch, as arrays are sliced."""
    if world == 1:
        return in_runs(total, batch_size=batch_size, rank=rank, world=world)
    marks = _marks(total, batch_size)
    counts = np.diff(marks)
    starts, stops = marks[:-1] + rank * counts // world, marks[:-1] + (rank + 1) * counts // world
    return FileShares(starts, stops, stops - starts)


def unit_order(units: int, seed: int, epoch: int) -> Numbers:
    """A random order of ``units`` for an epoch, the same on every rank."""
    return np.random.default_rng([seed, epoch]).permutation(units)


def overlaps(shares: FileShares, first: int, rows: int) -> list[tuple[int, int]]:
    """Which of ``rows`` rows, the first of which is number ``first``, are the rank's: ``(start, stop)`` from 0."""
    low = int(np.searchsorted(shares.stops, first, side="right"))
    high = int(np.searchsorted(shares.starts, first + rows, side="left"))
    starts = np.maximum(shares.starts[low:high] - first, 0).tolist()
    stops = np.minimum(shares.stops[low:high] - first, rows).tolist()
    return [(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop]


def recut(batches: Iterable[pa.RecordBatch], sizes: Sequence[int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Give the rows of ``batches`` in batches of ``sizes`` rows. Ends early where ``batches`` do."""
    source, held = iter(batches), RowBuffer(schema)
    for size in sizes:
        while held.rows < size:
            if (following := next(source, None)) is None:
                return
            held.put(following)
        yield held.take(size)


def _dealt(rows: Numbers | int, rank: int, world: int) -> Numbers | int:
    """How many of the first ``rows`` rows are dealt to ``rank``."""
    return (rows - rank + world - 1) // world


def _marks(total: int, batch_size: int) -> Numbers:
    steps = -(-total // batch_size)
    return np.minimum(np.arange(steps + 1, dtype=np.int64) * batch_size, total)
