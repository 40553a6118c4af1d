"""Cutting the rows of a partition up to the ranks as :mod:`tfos_magic.feed.row_assignment` says; no row is copied
twice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tfos_magic.columns.arrow import take_rows

Shares = list[list[pa.RecordBatch]]


class RowPartitioner:
    """Deals whole groups of ``world`` rows, row ``i`` of the partition to rank ``i % world``; the rest is the tail."""

    def __init__(self, world: int) -> None:
        self.rows = 0
        self._world = world
        self._shares: Shares = [[] for _ in range(world)]
        self._kept: list[pa.RecordBatch] = []

    def deal(self, batch: pa.RecordBatch) -> None:
        """Deal the next rows of the partition; up to ``world - 1`` of them, as views, wait for those that follow."""
        self.rows += batch.num_rows
        kept = sum(part.num_rows for part in self._kept)
        end = (kept + batch.num_rows) // self._world * self._world - kept
        if end <= 0:
            self._kept.append(batch)
            return
        waiting = (part.slice(row, 1) for part in self._kept for row in range(part.num_rows))
        for rank, row in enumerate(waiting):
            self._shares[rank].append(row)
        for rank in range(self._world):
            self._shares[rank].append(_every(batch, (rank - kept) % self._world, end, self._world))
        self._kept = [batch.slice(end)] if end < batch.num_rows else []

    def take(self) -> Shares:
        """Give what was dealt since the last time, by rank, in the partition's order."""
        shares, self._shares = self._shares, [[] for _ in range(self._world)]
        return shares

    def tail(self, schema: pa.Schema) -> pa.RecordBatch:
        """The rows of the partition that no whole group holds, once it has ended; it may be none."""
        return pa.concat_batches(self._kept) if self._kept else pa.RecordBatch.from_pylist([], schema=schema)


def _every(batch: pa.RecordBatch, first: int, end: int, step: int) -> pa.RecordBatch:
    return batch.slice(0, end) if step == 1 else take_rows(batch, np.arange(first, end, step))
