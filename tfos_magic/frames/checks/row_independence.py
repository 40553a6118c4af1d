"""A model tried on a few rows: whether what it makes of a row depends on the rows beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfos_magic.errors import UsageError
from tfos_magic.frames.checks.sampling import FIRST, MOST_BLOCKS, sample_of

# From here on rounding alone turns one class into another.
_COARSE = 1e-4

Call = Callable[[Sequence[Any]], dict[str, Any]]


class RowsCheck:
    """Tries ``call``, outputs by name from blocks, on its first block, and on a few more while their rows are alike.

    ``precision`` is the machine epsilon of the coarsest floating-point type that it computes in.
    """

    def __init__(self, call: Call, precision: float) -> None:
        self._call = call
        self._precision = precision
        self._left = MOST_BLOCKS

    def __call__(self, blocks: Sequence[Any]) -> None:
        """Raise :class:`UsageError` where rows get other values at once than in two parts."""
        sample = sample_of(blocks) if self._left else []
        if not sample or len(sample[0]) < 2:
            return
        self._left = 0 if any((block != block[:1]).any() for block in sample) else self._left - 1
        cut = min(FIRST, len(sample[0]) - 1)
        whole = self._call(sample)
        first, last = self._call([block[:cut] for block in sample]), self._call([block[cut:] for block in sample])
        for name, values in whole.items():
            parts = np.concatenate([first[name], last[name]]) if first[name].ndim == last[name].ndim else None
            # A single row may be at a threshold, which rounding passes.
            if parts is not None and parts.shape == values.shape and self._others(values, parts).sum() > 1:
                raise UsageError(
                    f"the model makes other values {name!r} of {len(values)} rows at once than of the same rows in two "
                    "parts: it mixes rows, such as by a mean over axis 0, and rows come in blocks of any size and "
                    "order. Compute what is of all rows once, with tfs.reduce_blocks, or call the model in "
                    "tfs.map_blocks if a mixture within blocks is what you want"
                )

    def _others(self, one: Any, other: Any) -> Any:
        """Which rows differ by more than rounding, which is another with the number of rows and carried on."""
        rows = len(one)
        if one.dtype.kind not in "fV":  # of bfloat16 NumPy knows nothing
            differ = (one != other) & (self._precision < _COARSE)
            return differ.reshape(rows, -1).any(axis=1)
        one, other = (each.astype(np.float64).reshape(rows, -1) for each in (one, other))
        both = np.isfinite(one) & np.isfinite(other)
        scale = np.max(np.abs(one), initial=0, where=both)
        with np.errstate(invalid="ignore"):
            differ = np.where(both, np.abs(one - other) > np.cbrt(self._precision) * scale, False)
        return differ.any(axis=1) | (np.isfinite(one) != np.isfinite(other)).any(axis=1)
