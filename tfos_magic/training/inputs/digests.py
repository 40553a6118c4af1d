"""Digests of data that every rank should have alike: of arrays before they are trained on, and of each global batch.

A rank takes its rows of a batch by their places, so ranks that have the same rows in different orders would use some
twice and others never. A batch's digest travels with the step's gradients.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

LEVELS = 256
"""Digests are below this, so that the sum of their squares is exact in float32 for 256 ranks."""

NEAR = 1e-3
_TURNS, _TINY = 30.0, 1e-30
_SAMPLED = 1024
_SPREAD = 0x1E3779B97F4A7C15
_WHOLE_BYTES = 16 << 20
_BLOCK_BYTES = 64 << 10
_ROWS, _DIGEST = "tfos_rows", "tfos_digest"


def of_arrays(arrays: Sequence[Any]) -> int:
    """A checksum of those of ``arrays`` that are NumPy's, pandas' or dense tensors; of blocks, beyond 16 MiB."""
    digest = 0
    for array in arrays:
        if not isinstance(array, (np.ndarray, ops.EagerTensor)) and not hasattr(array, "to_numpy"):
            continue
        for block in _blocks(np.ascontiguousarray(array)):
            digest = zlib.crc32(block, digest)
    return digest


def _blocks(array: Any) -> list[Any]:
    if array.dtype.hasobject:
        return [repr(array[:: max(1, len(array) // _SAMPLED)].tolist() if array.ndim else array.item()).encode()]
    flat = array.reshape(-1).view(np.uint8)
    if flat.nbytes <= _WHOLE_BYTES:
        return [flat]
    starts = np.linspace(0, flat.nbytes - _BLOCK_BYTES, _WHOLE_BYTES // _BLOCK_BYTES).astype(np.int64)
    return [flat[start : start + _BLOCK_BYTES] for start in starts]


def with_digest(rows: Any, batch: Any) -> dict[str, Any]:
    """A dataset's element that carries, beside this rank's ``rows``, the digest of the whole ``batch``."""
    return {_ROWS: rows, _DIGEST: of_batch(batch)}


def with_numbers_digest(rows: Any, numbers: tf.Tensor) -> dict[str, Any]:
    """As :func:`with_digest`, for rows that all ranks gather from the same arrays by ``numbers``."""
    return {_ROWS: rows, _DIGEST: of_numbers(numbers)}


def without_digest(element: Any) -> tuple[Any, Any]:
    """What :func:`with_digest` joined, or other elements and None."""
    if isinstance(element, dict) and _DIGEST in element:
        return element[_ROWS], element[_DIGEST]
    return element, None


def of_batch(batch: Any) -> tf.Tensor:
    """A float32 scalar below ``LEVELS``, of some values all over a batch and their places."""
    total = tf.zeros([], tf.int64)
    for leaf in tf.nest.flatten(batch, expand_composites=True):
        if leaf is None or leaf.dtype == tf.variant:
            continue
        flat = tf.reshape(leaf, [-1])
        values = _integers(flat[:: tf.maximum(1, tf.size(flat) // _SAMPLED)])
        total += tf.reduce_sum(values * (2 * tf.range(tf.size(values, tf.int64)) + 1))
    return _folded(total)


def of_numbers(numbers: tf.Tensor) -> tf.Tensor:
    """As :func:`of_batch`, of a vector of row numbers and in fewer operations: sums of prefixes depend on places."""
    return _folded(tf.reduce_sum(tf.cumsum(numbers)))


def _folded(total: tf.Tensor) -> tf.Tensor:
    # The high bits of a product depend on all bits (Knuth's multiplicative hashing).
    return tf.cast(tf.math.floormod(tf.bitwise.right_shift(total * _SPREAD, 40), LEVELS), tf.float32)


def of_gradients(gradients: Sequence[Any]) -> tf.Tensor:
    """A float32 scalar from -1 to 1 of the gradients' common norm, which differs where they do by a few thousandths.

    Where ranks have the same, :func:`apart` is below ``NEAR`` times the square of their number, whatever was rounded.
    """
    dense = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
    norm = tf.linalg.global_norm([tf.cast(g, tf.float32) for g in dense])
    return tf.sin(_TURNS * tf.math.log(norm + _TINY)) if dense else tf.zeros([])


def apart(digests: tf.Tensor, size: int) -> tf.Tensor:
    """Above 0 where not all of ``size`` ranks had the same digest, by the sums of their digests and squares."""
    sums = tf.cast(digests, tf.float64)
    return tf.cast(size * sums[1] - tf.square(sums[0]), tf.float32)


def _integers(values: tf.Tensor) -> tf.Tensor:
    if values.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(values, 1 << 31)
    if values.dtype == tf.float64:
        return tf.bitcast(values, tf.int64)
    if values.dtype == tf.float32:
        return tf.cast(tf.bitcast(values, tf.int32), tf.int64)
    return tf.cast(tf.cast(values, tf.float32) * 4096 if values.dtype.is_floating else values, tf.int64)
