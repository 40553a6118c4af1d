"""Some rows of the batch that an iterator gives next, and the iterator as if nobody had looked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import tensorflow as tf

from tfos_magic.training.step import rows_in

FEWEST, MOST, MANY = 4, 7, 64
MOST_BYTES = 8 << 20
CONTRAST = 32.0
LARGE = CONTRAST, 1.5 * CONTRAST
"""By how much rows of both parts are larger where what first rows do not reach is to show."""
_GOLDEN = 0.618


@dataclass(frozen=True)
class Tried:
    """All ``rows`` of a trial, and two parts of them, each with the number of its rows; ``wide`` are more of them, for
    a step may go by their number."""

    whole: tuple[Any, int]
    parts: tuple[tuple[Any, int], tuple[Any, int]]
    wide: Tried | None = None

    def mapped(self, change: Callable[[Any, int], Any]) -> Tried:
        """The same rows, after ``change(batch, number)`` of all of them (0) and of each part (1 and 2)."""
        (whole, total), ((first, n), (second, m)) = self.whole, self.parts
        wide = None if self.wide is None else self.wide.mapped(change)
        return Tried((change(whole, 0), total), ((change(first, 1), n), (change(second, 2), m)), wide)


def peek(iterator: Any, count: int) -> tuple[list[Any], Any]:
    """Take the next ``count`` batches, fewer at the end; gives them, and an iterator that begins with them.

    What it gives last for ``tf.data`` are those batches alone: whoever asks for ``count`` finds no difference.
    """
    batches = [batch for _, batch in zip(range(count), iterator, strict=False)]
    if not isinstance(iterator, tf.data.Iterator):
        return batches, chain(batches, iterator)
    if not batches:
        return batches, iterator
    first, *rest = (_with_spec(tf.data.Dataset.from_tensors(batch), iterator.element_spec) for batch in batches)
    for batch in rest:
        first = first.concatenate(batch)
    return batches, iter(first)


def _with_spec(dataset: Any, spec: Any) -> Any:
    """``dataset`` with the specification that the batches came with, or Keras would trace its step anew.

    A generator would do that too, but TensorFlow lets a process that has one give freed memory back at once, and take
    it again at each step.
    """
    return tf.data.experimental.from_variant(tf.data.experimental.to_variant(dataset), spec)


def tried(batch: Any, fewest: int = FEWEST, total: int = 0) -> Tried:
    """Some rows of a batch, repeated where there are less than the ``fewest``, cut so that neighbours come apart.

    Where there are more, they are as unlike as may be: a step may do something else with the few that are special.

    They have about ``MOST_BYTES`` bytes where the fewest have no more, which bounds what a trial takes. Where ``total``
    says how many rows all ranks have, there are wide ones as well: as many, so far as this rank has memory for them.
    """
    rows = max(int(rows_in(batch)), 1)
    size = sum(_bytes_of(leaf) for leaf in tf.nest.flatten(batch, expand_composites=True))
    rows_of_bytes = MOST_BYTES * rows // max(size, 1)
    trial_rows = max(fewest, min(2 * rows, MOST, rows_of_bytes))
    trial_rows -= trial_rows % 3 == 0  # or a part would be the same rows when they are reversed
    chosen = _unlike(batch, rows, trial_rows) if rows > trial_rows else np.arange(trial_rows) % rows
    whole = _varied(taken(batch, chosen), np.arange(trial_rows) // rows)
    first_part = apart(trial_rows)
    first, second = ((taken(whole, np.flatnonzero(part)), int(part.sum())) for part in (first_part, ~first_part))
    wide_rows = min(total, max(rows, min(2 * rows, rows_of_bytes), min(MANY, rows_of_bytes)))
    wide = tried(batch, wide_rows) if wide_rows > trial_rows + 1 else None
    return Tried((whole, trial_rows), (first, second), wide)


def _unlike(batch: Any, rows: int, count: int) -> Any:
    """The numbers of ``count`` of the ``rows`` of a batch, with the least and the largest that it has in each part."""
    numbers = [
        np.asarray(tf.reduce_mean(tf.reshape(tf.cast(leaf, tf.float64), [rows, -1]), 1))
        for leaf in tf.nest.flatten(batch)
        if isinstance(leaf, tf.Tensor) and leaf.shape.rank and (leaf.dtype.is_floating or leaf.dtype.is_integer)
    ]
    places = np.linspace(0, rows - 1, count).round().astype(int)
    orders = [np.argsort(column, kind="stable")[places] for column in numbers]  # what is no number comes last
    ends_first = np.argsort(np.minimum(np.arange(count), np.arange(count)[::-1]), kind="stable")
    found = dict.fromkeys(int(order[n]) for n in ends_first for order in orders)
    return np.sort([*found, *(n for n in range(rows) if n not in found)][:count])


def _varied(batch: Any, again: Any) -> Any:
    """Rows that come ``again`` made others than they were before: what compares rows does not show among equal ones.

    Floats are scaled. Whole numbers, such as classes and tokens, stay in the range of their column: they are drawn from
    those of other rows, and change places in the only one.
    """
    rows = int((again == 0).sum())

    def vary(leaf: Any) -> Any:
        if (
            not isinstance(leaf, tf.Tensor)
            or not leaf.shape.rank
            or not (leaf.dtype.is_floating or leaf.dtype.is_integer)
        ):
            return leaf
        if leaf.dtype.is_floating and bool(tf.reduce_any(tf.round(leaf) != leaf)):
            factors = np.where(again > 0, 0.5 + again * _GOLDEN % 1, 1.0)
            return leaf * tf.cast(tf.reshape(factors, [-1, *[1] * (leaf.shape.rank - 1)]), leaf.dtype)
        if leaf.shape.rank == 1:
            return leaf
        if rows == 1:
            return tf.stack([tf.roll(row, int(n), 0) for row, n in zip(leaf, again, strict=True)])
        drawn = np.random.default_rng(rows).integers(0, rows, (len(again), leaf.shape[1]))
        source = np.where(again[:, None] > 0, drawn, np.arange(len(again))[:, None])
        return tf.gather_nd(leaf, np.stack([source, np.broadcast_to(np.arange(leaf.shape[1]), source.shape)], -1))

    return tf.nest.map_structure(vary, batch) if again.any() else batch


def in_float64(rows: Tried) -> Tried:
    """The same rows, their float32 as float64."""

    def cast(leaf: Any) -> Any:
        return tf.cast(leaf, tf.float64) if getattr(leaf, "dtype", None) == tf.float32 else leaf

    return rows.mapped(lambda batch, _: tf.nest.map_structure(cast, batch))


def filled(rows: Tried) -> Tried:
    """The same rows with a number in every place, larger ones in one part: what is zero for them, as where all labels
    are missing, shows then. Rows of whole numbers, not all of them zero in a tensor, are given back as they are."""
    whole, total = rows.whole
    drawn, large = np.random.default_rng(total), 2.0 * ~apart(total)

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
            return leaf
        if leaf.dtype.is_bool:
            return tf.ones_like(leaf)
        if leaf.dtype.is_integer:
            if bool(tf.reduce_all(leaf >= 0) and tf.reduce_any(leaf > 0)):
                return leaf
            known = tf.maximum(leaf, tf.zeros_like(leaf))
            return known if bool(tf.reduce_any(known > 0)) else tf.ones_like(leaf)
        if not leaf.dtype.is_floating:
            return leaf
        more = drawn.uniform(0.5, 1.0, leaf.shape) + large.reshape([-1, *[1] * (leaf.shape.rank - 1)])
        return leaf + tf.cast(more, leaf.dtype)

    batch = tf.nest.map_structure(fill, whole)
    if all(new is old for new, old in zip(tf.nest.flatten(batch), tf.nest.flatten(whole), strict=True)):
        return rows
    parts = [np.flatnonzero(apart(total) == first) for first in (True, False)]
    first, second = ((taken(batch, part), len(part)) for part in parts)
    return Tried((batch, total), (first, second))


def has_zeros_alone(rows: Tried) -> bool:
    """Whether numbers of the rows are all zero in one of the tensors."""
    leaves = [leaf for leaf in tf.nest.flatten(rows.whole[0]) if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating]
    return any(leaf.shape.rank and not bool(tf.reduce_any(leaf != 0)) for leaf in leaves)


def contrasted(rows: Tried, first: float = CONTRAST, second: float = 1 / CONTRAST) -> Tried:
    """The same rows, the floats of the ``first`` part much larger than those of the ``second``, or as much as is said:
    what depends on a threshold shows."""
    total = rows.whole[1]
    factors = (np.where(apart(total), first, second), [first], [second])

    def scaled(leaf: Any, factor: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or not leaf.dtype.is_floating or leaf.shape.rank == 0:
            return leaf
        return leaf * tf.cast(tf.reshape(tf.constant(factor), [-1, *[1] * (len(leaf.shape) - 1)]), leaf.dtype)

    few = replace(rows, wide=None)
    return few.mapped(lambda batch, part: tf.nest.map_structure(lambda leaf: scaled(leaf, factors[part]), batch))


def apart(rows: int) -> Any:
    """Which of ``rows`` rows are the first part."""
    return np.arange(rows) % 3 == 1


def _bytes_of(leaf: Any) -> int:
    return 0 if leaf is None else int(tf.size(leaf)) * max(leaf.dtype.size, 1)


def taken(batch: Any, numbers: Any) -> Any:
    """The rows ``numbers`` of a batch."""
    return tf.nest.map_structure(lambda leaf: _rows_of(leaf, numbers), batch)


def _rows_of(leaf: Any, numbers: Any) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        dense = [tf.sparse.slice(leaf, [n, *[0] * (leaf.shape.rank - 1)], [1, *leaf.dense_shape[1:]]) for n in numbers]
        return tf.sparse.concat(0, dense)
    if isinstance(leaf, tf.RaggedTensor) or getattr(getattr(leaf, "shape", None), "rank", None):
        return tf.gather(leaf, numbers)
    return None if isinstance(leaf, tf.experimental.Optional) else leaf  # as Keras hands a generator's None to a step


def as_tensor(leaf: Any) -> Any:
    """An array as a tensor, and what else a batch has as it is."""
    return tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
