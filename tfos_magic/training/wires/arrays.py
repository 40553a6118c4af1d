"""A wire for CPUs: TensorFlow hands its tensors over as NumPy arrays, without a copy, and takes the results back."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfos_magic.training.wires import Array, Exchange, PeerLost
from tfos_magic.training.wires.layout import empty_like


class ArrayWire:
    """Sums tensors through ``exchange``."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._lock = threading.Lock()
        # A graph keeps the function it calls for ever, so there is one function for all graphs.
        self._function = self.reduce_arrays

    @property
    def name(self) -> str:
        return self.exchange.name

    @property
    def sent(self) -> int:
        return self.exchange.sent

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._reduce(tensors, 0, 1.0)

    def mean(self, tensors: Sequence[tf.Tensor], weight: tf.Tensor, summed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._reduce([*tensors, *summed], len(tensors), weight)

    def sum_rows(self, tensor: tf.Tensor, offset: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        room = total - offset - tf.shape(tensor)[0]
        return self.sum([tf.pad(tensor, [[offset, room], *([0, 0] for _ in tensor.shape[1:])])])[0]

    def align(self) -> None:
        """Nothing is numbered here."""

    def explain(self, error: Exception) -> str | None:
        return self.exchange.failure or None

    def abort(self, reason: str) -> None:
        self.exchange.abort(reason)

    def close(self) -> None:
        self.exchange.close()

    def sum_arrays(self, *arrays: Array) -> list[Array]:
        """Sum NumPy arrays over the ranks. Raises :class:`PeerLost` when a peer is lost or late."""
        return self.reduce_arrays(np.int64(0), np.float32(1.0), *arrays)

    def reduce_arrays(self, averaged: np.int64, weight: np.float32, *arrays: Array) -> list[Array]:
        """Sum arrays of any shapes; of the first ``averaged`` give the mean instead, each rank's by its ``weight``."""
        totals = empty_like(arrays)
        own, results = [array.reshape(-1) for array in arrays], [total.reshape(-1) for total in totals]
        try:
            with self._lock:
                self.exchange.reduce(own, results, int(averaged), float(weight))
        except PeerLost:
            raise
        except BaseException as error:
            self.exchange.abort(f"a rank failed: {type(error).__name__}: {error}")
            raise
        return totals

    def _reduce(self, tensors: Sequence[tf.Tensor], averaged: int, weight: tf.Tensor | float) -> list[tf.Tensor]:
        if tf.executing_eagerly():
            arrays = (np.asarray(tensor) for tensor in tensors)
            totals = self.reduce_arrays(np.int64(averaged), np.float32(weight), *arrays)
            return [tf.convert_to_tensor(total) for total in totals]
        arguments = [tf.constant(averaged, tf.int64), tf.cast(weight, tf.float32), *tensors]
        totals = tf.numpy_function(self._function, arguments, [tensor.dtype for tensor in tensors])
        for tensor, total in zip(tensors, totals, strict=True):
            total.set_shape(tensor.shape)
        return totals
