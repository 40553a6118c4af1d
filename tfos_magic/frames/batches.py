"""Arrow batches cut anew, so that blocks have the size that suits the function and not the one that came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def reblocked(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Give the same rows as batches of a multiple of ``rows``; only the last one may be odd.

    What is copied is at most one block where two batches meet; all else are slices.
    """
    rest: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if held:
            missing = rows - held
            rest.append(batch.slice(0, missing))
            held += rest[-1].num_rows
            batch = batch.slice(min(missing, batch.num_rows))
            if held < rows:
                continue
            yield joined(rest)
            rest, held = [], 0
        whole = batch.num_rows - batch.num_rows % rows
        if whole:
            yield batch.slice(0, whole)
        if whole < batch.num_rows:
            rest, held = [batch.slice(whole)], batch.num_rows - whole
    if held:
        yield joined(rest)


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch with the rows of all."""
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
