"""Arrow batches cut anew: rows are put in as they come, and taken out in batches of any size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import pyarrow as pa


class RowBuffer:
    """Rows in their order. Those of one batch come out as a view of it; only what lies in several is joined."""

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.rows = 0
        self._held: deque[pa.RecordBatch] = deque()
        self._schema = schema

    def put(self, batch: pa.RecordBatch) -> None:
        """Batches without rows are dropped."""
        if batch.num_rows:
            self._held.append(batch)
            self.rows += batch.num_rows

    def take(self, rows: int) -> pa.RecordBatch:
        """Take the next ``rows`` rows, of those that there are; none need ``schema``."""
        parts: list[pa.RecordBatch] = []
        self.rows -= rows
        while rows:
            first = self._held.popleft()
            parts.append(first.slice(0, rows))
            if first.num_rows > rows:
                self._held.appendleft(first.slice(rows))
            rows -= parts[-1].num_rows
        return joined(parts) if parts else pa.RecordBatch.from_pylist([], schema=self._schema)


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch with the rows of all."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def reblocked(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Give the same rows as batches of a multiple of ``rows``; only the last one may be odd.

    What is copied is at most one block where two batches meet; all else are slices.
    """
    held = RowBuffer()
    for batch in batches:
        before = held.rows
        held.put(batch)
        if before and held.rows >= rows:
            yield held.take(rows)
        if whole := held.rows - held.rows % rows:
            yield held.take(whole)
    if held.rows:
        yield held.take(held.rows)
