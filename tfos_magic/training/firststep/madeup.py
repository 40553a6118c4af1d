"""Made-up rows of a dataset's specification, on which functions are tried."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfos_magic.training.firststep.batches import apart

FEWEST = 7
UNKNOWN_LENGTH = 4
_PERIOD = 4093
"""Made-up values repeat after so many, a prime number, so that rows are not alike."""


class CannotTell(Exception):
    """Functions that are not to be run on made-up rows."""


class MadeUp:
    """Makes ``rows`` rows of a specification, the same ones each time; most functions take ``plain`` ones."""

    def __init__(self, plain: bool, rows: int, seed: int = 1) -> None:
        self._plain, self._rows, self._seed = plain, rows, seed
        self._random = np.random.default_rng(seed)

    def anew(self) -> MadeUp:
        """One that makes the rows that this one made at first."""
        return MadeUp(self._plain, self._rows, self._seed)

    def __call__(self, spec: Any) -> Any:
        if isinstance(spec, tf.RaggedTensorSpec):
            return self._ragged(spec)
        if isinstance(spec, tf.SparseTensorSpec):
            return tf.sparse.from_dense(self(tf.TensorSpec(spec.shape, spec.dtype)))
        if not isinstance(spec, tf.TensorSpec):
            raise CannotTell
        shape = [UNKNOWN_LENGTH if length is None else length for length in spec.shape]
        owners = np.arange(self._rows) if shape else np.zeros(1, int)
        return self._values(spec.dtype, owners, shape[1:]) if shape else self._values(spec.dtype, owners, [])[0]

    def _ragged(self, spec: Any) -> Any:
        owners, lengths = np.arange(self._rows), []
        for axis in range(1, spec.ragged_rank + 1):
            shortest = FEWEST if self._plain else 1
            row_lengths = np.where(apart(self._rows), shortest, shortest + 1 + np.arange(self._rows) % FEWEST)[owners]
            row_lengths = row_lengths if spec.shape[axis] is None else np.full(len(owners), spec.shape[axis])
            lengths.append(row_lengths)
            owners = np.repeat(owners, row_lengths)
        inner = [UNKNOWN_LENGTH if length is None else length for length in spec.shape[spec.ragged_rank + 1 :]]
        values = self._values(spec.dtype, owners, inner)
        made = tf.RaggedTensor.from_nested_row_lengths(values, lengths)
        return made.with_row_splits_dtype(spec.row_splits_dtype)

    def _values(self, dtype: Any, owners: Any, inner: list[int]) -> Any:
        """Values of ``inner`` shape for each of ``owners``, the rows that they are in: larger ones in one part."""
        shape = [len(owners), *inner]
        large = np.reshape(~apart(self._rows)[owners], [-1, *[1] * len(inner)])
        if dtype.is_floating or dtype.is_complex:
            drawn = self._random.uniform(0.5, 1.0, _PERIOD) if self._plain else self._random.normal(size=_PERIOD)
            return tf.cast(np.resize(drawn.astype(np.float32), shape) + large, dtype)
        numbers = np.resize(self._random.integers(0, 2, _PERIOD, np.int32), shape)
        if dtype == tf.string:
            more = np.where(large & (not self._plain), " d e", "")
            return tf.strings.join(
                [tf.strings.as_string(numbers) if self._plain else tf.gather(["ab", "c"], numbers), more]
            )
        return tf.cast(numbers if self._plain else numbers + 2 * large, dtype)
