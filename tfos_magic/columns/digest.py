"""A number that tells rows from other rows, by a few operations of NumPy a batch on a sample of what is in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MODULUS = 1 << 62
SAMPLE = 4
"""Elements of a list, or bytes of a string, that are looked at: the first, the last, and others evenly between."""

Words = npt.NDArray[np.uint64]


def rows_digest(batch: pa.RecordBatch) -> int:
    """Give the digest of a wire batch, less than ``MODULUS``. Sums of digests, modulo that, are those of all rows,
    in whatever order and batches they come; another value in a row, or values of two rows that change places, tell."""
    rows = np.zeros(batch.num_rows, np.uint64)
    for number, array in enumerate(batch.columns):
        rows = _mixed(rows * np.uint64(31) + _of_rows(array) + np.uint64(number))
    return int(rows.sum(dtype=np.uint64)) % MODULUS


def _of_rows(array: pa.Array) -> Words:
    """A word for each value of ``array``; 0 for types that no feed has."""
    kind = array.type
    if pa.types.is_struct(kind):
        return _joined([_of_rows(part) for part in array.flatten()], len(array))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_runs(np.asarray(array.offsets), array.values)
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        data = array.buffers()[2]
        letters = pa.array(np.frombuffer(data or b"", np.uint8))
        return _of_runs(np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1], letters)
    if pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
    if pa.types.is_primitive(array.type):
        numbers: Any = np.asarray(array)
        return _mixed(numbers.view(f"u{numbers.itemsize}").astype(np.uint64))
    return np.zeros(len(array), np.uint64)


def _of_runs(offsets: npt.NDArray[Any], values: pa.Array) -> Words:
    """A word for each run ``[offsets[i], offsets[i + 1])`` of ``values``: of its length, and of a sample."""
    begins, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    words = lengths.astype(np.uint64)
    filled = np.flatnonzero(lengths)
    if not len(filled):
        return words
    for part in range(SAMPLE):
        places = begins[filled] + part * (lengths[filled] - 1) // (SAMPLE - 1)
        words[filled] = _mixed(words[filled] * np.uint64(31) + _of_rows(values.take(pa.array(places))))
    return words


def _joined(parts: list[Words], rows: int) -> Words:
    words = np.zeros(rows, np.uint64)
    for part in parts:
        words = _mixed(words * np.uint64(31) + part)
    return words


def _mixed(words: Words) -> Words:
    """Spread each word over all its bits (Steele et al., "Fast splittable pseudorandom number generators", 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
