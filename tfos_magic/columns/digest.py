"""Numbers that tell rows from other rows, by a few operations of NumPy a batch on a sample of what is in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MODULUS = 1 << 62
SAMPLE = 4
"""Elements of a list, or bytes of a string, that are looked at: the first, the last, and others evenly between."""

_BASE = 0x9E3779B97F4A7C15

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class RowsDigest:
    """How many rows there are, and two numbers below ``MODULUS``: ``content`` is the same in whatever order and batches
    they come, ``order`` in whatever batches. Another value in a row, or values of two rows that change places, tell.

    ``order`` is a polynomial of the rows' words, as in Karp and Rabin, "Efficient randomized pattern-matching
    algorithms", 1987: that of two runs of rows, one after the other, follows from theirs.
    """

    rows: int = 0
    content: int = 0
    order: int = 0

    def __add__(self, after: RowsDigest) -> RowsDigest:
        """The digest of these rows and of those that come ``after`` them."""
        order = self.order + pow(_BASE, self.rows, MODULUS) * after.order
        return RowsDigest(self.rows + after.rows, (self.content + after.content) % MODULUS, order % MODULUS)


def digest_of(batch: pa.RecordBatch) -> RowsDigest:
    """Give the digest of a wire batch."""
    words = np.zeros(batch.num_rows, np.uint64)
    for number, array in enumerate(batch.columns):
        words = _mixed(words * np.uint64(31) + _of_rows(array) + np.uint64(number))
    order = int(np.dot(words, _powers(len(words))))
    return RowsDigest(len(words), int(words.sum(dtype=np.uint64)) % MODULUS, order % MODULUS)


def joined(digests: Iterable[RowsDigest]) -> RowsDigest:
    """The digest of runs of rows, one after another."""
    return sum(digests, RowsDigest())


@lru_cache(2)
def _powers(count: int) -> Words:
    powers = np.full(count, _BASE, np.uint64)
    powers[:1] = 1
    return np.multiply.accumulate(powers)


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
    words = words ^ (words >> np.uint64(30))
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
