"""Spark ML's vectors as Arrow carries them: structs of type, size, indices and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DENSE = 1


def vector_values(array: pa.Array) -> pa.Array:
    """Vectors, dense and sparse, as a list column of float64; null vectors are null lists."""
    kinds, values = array.field("type"), array.field("values")
    if not array.null_count and (not len(array) or pc.min(kinds).as_py() == _DENSE):
        return values
    return _densified(array, values)


def _densified(array: pa.Array, values: pa.Array) -> pa.Array:
    there = array.is_valid().to_numpy(zero_copy_only=False)
    dense = pc.fill_null(array.field("type"), 0).to_numpy() == _DENSE
    counts = np.where(there, pc.fill_null(pc.list_value_length(values), 0).to_numpy(), 0).astype(np.int64)
    sizes = np.where(dense, counts, np.where(there, pc.fill_null(array.field("size"), 0).to_numpy(), 0))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    row = np.repeat(np.arange(len(array)), counts)
    position = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    position[~dense[row]] = array.field("indices").flatten().to_numpy()
    flat = np.zeros(offsets[-1])
    flat[offsets[row] + position] = values.flatten().to_numpy()
    return _lists(offsets, flat, there)


def _lists(offsets: Any, flat: Any, there: Any) -> pa.Array:
    mask = None if there.all() else pa.array(~there)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat), mask=mask)
