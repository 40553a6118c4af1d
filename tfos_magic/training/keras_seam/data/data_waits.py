"""How long a rank waits for its next batch: what ``fit`` and ``evaluate`` spend in their iterators."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

from tfos_magic.training.keras_seam.seams import wrap


class DataClock:
    """Adds up the seconds between asking for a batch and having it, in graphs as well, where Python is not there."""

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self._seconds = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="tfos_data_seconds")

    @property
    def seconds(self) -> float:
        """Seconds waited since the run began."""
        return float(self._seconds.numpy())

    def install(self, stack: ExitStack) -> None:
        """Time every iterator until ``stack`` closes."""
        for name in ("_next_internal", "get_next_as_optional"):  # Keras asks for optional batches in blocks of steps
            wrap(stack, OwnedIterator, name, self._next)

    def _next(self, original: Any, iterator: Any) -> Any:
        begun = tf.timestamp()
        with tf.control_dependencies([begun]):
            batch = original(iterator)
        read = [leaf for leaf in tf.nest.flatten(batch, expand_composites=True) if leaf is not None]
        with tf.control_dependencies(read):
            self._seconds.assign_add(tf.timestamp() - begun)
        return batch
