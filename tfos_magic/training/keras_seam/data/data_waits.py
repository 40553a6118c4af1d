"""How long a rank waits for its next batch: what ``fit`` and ``evaluate`` spend in their iterators."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.framework.config import is_op_determinism_enabled

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
        begun = _now()
        with tf.control_dependencies([begun]):
            batch = original(iterator)
        read = [leaf for leaf in tf.nest.flatten(batch, expand_composites=True) if leaf is not None]
        with tf.control_dependencies(read):
            self._seconds.assign_add(_now() - begun)
        return batch


def _now() -> tf.Tensor:
    """Seconds of TensorFlow's clock; of Python's, where operations are to be deterministic, which that one is not."""
    return tf.numpy_function(_clock, [], tf.float64) if is_op_determinism_enabled() else tf.timestamp()


def _clock() -> np.float64:
    return np.float64(time.monotonic())
