"""One number for each batch, given to a ``Mean`` or a ``Sum`` in a loop of the cell's own: that of the whole batch."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfos_magic.training import refusals
from tfos_magic.training.rank_session import Session


@dataclass(frozen=True)
class _Known:
    """Of one metric: whether it was given other numbers on each rank, and what ``Sum`` has to add then for numbers
    that ranks had alike before, by chance."""

    apart: tf.Variable
    missing: tf.Variable


class BatchNumbers:
    """What ranks with rows give alike, such as a loss of all rows or a constant, is the number of the batch.

    What they do not is taken for a mean over rows by a ``Mean`` and for a sum by a ``Sum``, which is said. Numbers of
    rows are added up by both.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()
        self.weight = float(session.collectives.rank == 0)
        """The number of the batch counts on one rank."""

    def of_batch(self, metric: Any, value: Any, rows: tf.Tensor) -> tf.Tensor:
        """The number of the batch for which this rank gives ``value`` of its ``rows``, a float64 scalar."""
        value_and_rows = tf.stack([tf.cast(value, tf.float64), tf.cast(rows, tf.float64)])
        values, counts = tf.unstack(self._session.collectives.concat([value_and_rows[tf.newaxis]])[0], axis=1)
        there = counts > 0
        first = values[tf.argmax(tf.cast(there, tf.int32))]
        alike = tf.reduce_all(tf.equal(values, first) | ~there)
        are_rows = tf.reduce_all(tf.equal(values, counts))
        total = tf.reduce_sum(tf.where(there, values, tf.zeros_like(values)))
        known = self._of(metric)
        apart = known.apart.read_value() | ~(alike | are_rows)
        if not isinstance(metric, keras.metrics.Sum):
            known.apart.assign(apart)
            mean = tf.math.divide_no_nan(tf.reduce_sum(tf.math.multiply_no_nan(values, counts)), tf.reduce_sum(counts))
            return tf.where(are_rows, total, tf.where(alike, first, mean))
        late = tf.where(apart, known.missing.read_value(), 0.0)
        known.missing.assign(tf.where(apart | are_rows, known.missing - late, known.missing + total - first))
        known.apart.assign(apart)
        return late + tf.where(apart | are_rows, total, first)

    def reset(self, metric: Any) -> None:
        """``metric`` begins anew."""
        if (known := self._known.get(metric)) is not None:
            with tf.init_scope():
                known.missing.assign(0.0)

    def tell(self) -> None:
        """Say of which metrics it is not known whether they were given means or sums."""
        apart = [metric for metric, known in self._known.items() if known.apart.numpy()]
        refusals.note_batch_numbers(sorted(metric.name for metric in apart), self._session.reporter)

    def _of(self, metric: Any) -> _Known:
        if metric not in self._known:
            with tf.init_scope(), tf.device("CPU:0"):
                self._known[metric] = _Known(
                    tf.Variable(False, trainable=False), tf.Variable(0.0, dtype=tf.float64, trainable=False)
                )
        return self._known[metric]
