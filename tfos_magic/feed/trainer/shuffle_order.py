"""The order in which a rank reads its rows: blocks in a random order, rows in a random order within a window of blocks.

It follows from the number of rows, the seed, the rank and the epoch alone, so a run can be repeated, a resumed one goes
on in the same order, and two DataFrames with the same rows in each partition stay side by side. What lies near is read
together, and memory does not grow with the rows: one number for each block and one for each row of a window. Shuffling
files first and rows in a buffer then is how ``tf.data`` input pipelines do it (Murray et al., "tf.data", VLDB 2021).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tfos_magic.columns.arrow import take_rows
from tfos_magic.columns.row_buffer import RowBuffer

Numbers = npt.NDArray[np.int64]

BLOCK_ROWS = 256
WINDOW_BLOCKS = 64
WINDOW_ROWS = BLOCK_ROWS * WINDOW_BLOCKS
WINDOW_BYTES = 64 << 20


class ShuffleOrder:
    """A random order of the numbers ``0`` to ``rows - 1``, for one epoch of one rank. Thread-safe."""

    def __init__(self, rows: int, *, seed: int, rank: int, epoch: int) -> None:
        self.rows = rows
        self._key = (seed, rank, epoch)
        self._blocks = _generator(*self._key, 0).permutation(-(-rows // BLOCK_ROWS))
        last = len(self._blocks) - 1
        # The last block may be short, wherever it comes now: all windows after it begin that much earlier.
        self._missing = len(self._blocks) * BLOCK_ROWS - rows
        self._short = int(np.flatnonzero(self._blocks == last)[0]) if rows else 0
        self._latest: tuple[int, Numbers] = (-1, np.empty(0, np.int64))

    def numbers(self, start: int, stop: int) -> Numbers:
        """Give the row numbers at places ``[start, stop)`` of this order: int64, shape ``(stop - start,)``.

        Cheap when asked for one run of places after another. There is nothing at places beyond the last row.
        """
        stop = min(stop, self.rows)
        parts = []
        window = self._window_at(start)
        while start < stop:
            begin = self._begin(window)
            part = self._window(window)[start - begin : stop - begin]
            parts.append(part)
            start, window = start + len(part), window + 1
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])

    def _begin(self, window: int) -> int:
        """The place where a window begins."""
        blocks = window * WINDOW_BLOCKS
        return blocks * BLOCK_ROWS - (self._missing if blocks > self._short else 0)

    def _window_at(self, place: int) -> int:
        window = place // WINDOW_ROWS
        return window + 1 if place >= self._begin(window + 1) else window

    def _window(self, window: int) -> Numbers:
        latest, numbers = self._latest
        if latest == window:
            return numbers
        blocks = self._blocks[window * WINDOW_BLOCKS : (window + 1) * WINDOW_BLOCKS]
        inside = (blocks[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS)).ravel()
        numbers = _generator(*self._key, 1 + window).permutation(inside[inside < self.rows])
        self._latest = window, numbers
        return numbers


class ShuffledEpochs:
    """Counts the epochs of a dataset: an iterator begins one when it is first read. Thread-safe."""

    def __init__(self) -> None:
        self._next = 0
        self._lock = threading.Lock()

    @property
    def next(self) -> int:
        """The number of the epoch that is to begin next."""
        return self._next

    def begin(self) -> int:
        """Give the number of the epoch that begins now, from 0."""
        with self._lock:
            self._next += 1
            return self._next - 1

    def skip(self, count: int) -> None:
        """Leave ``count`` epochs behind, as if they had been read."""
        with self._lock:
            self._next += count


def shuffled(
    batches: Iterable[pa.RecordBatch], *, seed: int, rank: int, epoch: int, window_bytes: int = WINDOW_BYTES
) -> Iterator[pa.RecordBatch]:
    """Give the rows of ``batches``, which come but once, in a random order within windows, in batches of 256 rows.

    A window is filled before its first row is given: 16,384 rows, or the first blocks of 256 rows that have
    ``window_bytes`` bytes together. The order depends on the rows alone, not on how they were cut into ``batches``.
    """
    gathered: list[pa.RecordBatch] = []
    size = window = 0
    for block in _blocks(batches):
        gathered.append(block)
        size += block.nbytes
        if len(gathered) == WINDOW_BLOCKS or size >= window_bytes:
            yield from _mixed(gathered, _generator(seed, rank, epoch, 1 + window))
            gathered, size, window = [], 0, window + 1
    yield from _mixed(gathered, _generator(seed, rank, epoch, 1 + window))


def _mixed(blocks: list[pa.RecordBatch], generator: np.random.Generator) -> Iterator[pa.RecordBatch]:
    if not blocks:
        return
    whole = pa.concat_batches(blocks)
    blocks.clear()
    numbers = generator.permutation(whole.num_rows)
    for start in range(0, len(numbers), BLOCK_ROWS):
        yield take_rows(whole, numbers[start : start + BLOCK_ROWS])


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut rows anew, into blocks of 256; each is a copy, whose size in bytes depends on its rows alone."""
    held = RowBuffer()
    for batch in batches:
        held.put(batch)
        while held.rows >= BLOCK_ROWS:
            yield _copy(held.take(BLOCK_ROWS))
    if held.rows:
        yield _copy(held.take(held.rows))


def _copy(batch: pa.RecordBatch) -> pa.RecordBatch:
    # Arrow copies only what it has to join.
    return pa.concat_batches([batch, batch.slice(0, 0)])


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
