"""A wire for CPUs: TensorFlow hands its tensors over as NumPy arrays, without a copy, and takes the results back."""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from tfos_magic.training.allreduce import AllReduce, Array, PeerLost
from tfos_magic.training.allreduce.result_memory import LentArrays


class Turns:
    """Calls Python functions of a graph in the order in which they were traced.

    TensorFlow keeps such calls in order among each other, but not with those in a branch of ``tf.cond`` that uses
    variables, too. What uses one variable it keeps in order wherever it is, so each call is between two uses of one.
    """

    @cached_property
    def _handle(self) -> tf.Tensor:
        """That of a variable which no graph takes for one that it has made: it would be traced another time."""
        with tf.init_scope(), tf.device("CPU:0"):
            handle = tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name=f"tfos_turn_{id(self)}")
            tf.raw_ops.AssignVariableOp(resource=handle, value=0)
            return handle

    def call(self, function: Callable[..., Any], tensors: Sequence[tf.Tensor], kinds: Sequence[Any]) -> list[Any]:
        """``tf.numpy_function``; raw operations, because this is no variable of the cell's."""
        handle = self._handle
        turn = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int32)
        with tf.control_dependencies([turn]):
            results = tf.numpy_function(function, tensors, kinds)
        with tf.control_dependencies(results):
            tf.raw_ops.AssignVariableOp(resource=handle, value=turn)
        return list(results)

    def reduce(self, function: Callable[..., Any], tensors: Sequence[tf.Tensor], *before: tf.Tensor) -> list[Any]:
        """Call ``function`` with what is ``before`` the tensors and these, for which it gives as many like them."""
        reduced = self.call(function, [*before, *tensors], [tensor.dtype for tensor in tensors])
        for tensor, result in zip(tensors, reduced, strict=True):
            result.set_shape(tensor.shape)
        return reduced


class ArrayWire:
    """Sums tensors through ``exchange``."""

    def __init__(self, exchange: AllReduce) -> None:
        self.exchange = exchange
        self._seconds = 0.0
        self._lock = threading.Lock()
        self._results = LentArrays()
        self._turns = Turns()
        # A graph keeps the functions it calls for ever, so there is one of each for all graphs.
        self._reducing = self.reduce_arrays
        self._gathering = self.concat_arrays
        self._beginning = self._begin
        self._ending = self._end
        self._background = ThreadPoolExecutor(1, "tfos-average")
        self._under_way: dict[int, Future[list[Array]]] = {}
        self._waited_before: float | None = None
        self._unseen = 0.0

    @property
    def name(self) -> str:
        return self.exchange.name

    @property
    def sent(self) -> int:
        return self.exchange.sent

    @property
    def waited(self) -> float:
        waited = self.exchange.waited if self._waited_before is None else self._waited_before
        return waited - self._unseen

    @property
    def exchanged(self) -> float:
        return self._seconds - self.waited

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._reduce(tensors, 0, 1.0)

    def mean(self, tensors: Sequence[tf.Tensor], weight: tf.Tensor, summed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return self._reduce([*tensors, *summed], len(tensors), weight)

    def concat(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if tf.executing_eagerly():
            return [tf.convert_to_tensor(rows) for rows in self.concat_arrays(*(np.asarray(t) for t in tensors))]
        everything = self._turns.call(self._gathering, tensors, [tensor.dtype for tensor in tensors])
        for tensor, rows in zip(tensors, everything, strict=True):
            rows.set_shape([None, *tensor.shape[1:]])
        return everything

    def begin_mean(
        self, owner: int, tensors: Sequence[tf.Tensor], weight: tf.Tensor, summed: Sequence[tf.Tensor]
    ) -> None:
        """Begin what :meth:`mean` does, and let it go on meanwhile. Any other operation waits for its end.

        An ``owner`` has one under way; what it has left behind is forgotten.
        """
        numbers = [tf.constant(owner, tf.int64), tf.constant(len(tensors), tf.int64), tf.cast(weight, tf.float32)]
        everything = [*numbers, *tensors, *summed]
        if tf.executing_eagerly():
            self._begin(np.int64(owner), *(np.asarray(tensor) for tensor in everything[1:]))
        else:
            self._turns.call(self._beginning, everything, [tf.int32])

    def end_mean(self, owner: int, like: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
        """Give what the ``owner``'s :meth:`begin_mean` was to give: ``like`` what it was given."""
        if tf.executing_eagerly():
            return [tf.convert_to_tensor(result) for result in self._end(np.int64(owner))]
        results = self._turns.call(self._ending, [tf.constant(owner, tf.int64)], [each.dtype for each in like])
        for result, each in zip(results, like, strict=True):
            result.set_shape(each.shape)
        return results

    def align(self) -> None:
        """Nothing is numbered here."""

    def explain(self, error: Exception) -> str | None:
        return self.exchange.failure or None

    def abort(self, reason: str) -> None:
        self.exchange.abort(reason)

    def close(self) -> None:
        if not all(average.done() for average in self._under_way.values()):
            self.exchange.abort("a rank left")
        self._background.shutdown()
        self.exchange.close()

    def sum_arrays(self, *arrays: Array) -> list[Array]:
        """Sum NumPy arrays over the ranks. Raises :class:`PeerLost` when a peer is lost or late."""
        return self.reduce_arrays(np.int64(0), np.float32(1.0), *arrays)

    def reduce_arrays(self, averaged: np.int64, weight: np.float32, *arrays: Array) -> list[Array]:
        """Sum arrays of any shapes; of the first ``averaged`` give the mean instead, each rank's by its ``weight``."""
        with self._alone():
            return self._reduce_now(averaged, weight, *arrays)

    def _reduce_now(self, averaged: np.int64, weight: np.float32, *arrays: Array) -> list[Array]:
        totals = self._results.empty([(array.shape, array.dtype) for array in arrays])
        flat_arrays, results = [array.reshape(-1) for array in arrays], [total.reshape(-1) for total in totals]
        self.exchange.reduce(flat_arrays, results, int(averaged), float(weight))
        return totals

    def concat_arrays(self, *arrays: Array) -> list[Array]:
        """Concatenate arrays over the ranks, whose numbers of rows travel before the rows."""
        operation = zlib.crc32(repr([(array.dtype, array.shape[1:]) for array in arrays]).encode())
        count = np.array([arrays[0].shape[0]], np.int64)
        with self._alone():
            ranks = self.exchange.gather([_bytes_of(count), *map(_bytes_of, arrays)], operation)
            counts = [int(np.frombuffer(rank[: count.nbytes].tobytes(), np.int64)[0]) for rank in ranks]
            everything = self._results.empty([((sum(counts), *array.shape[1:]), array.dtype) for array in arrays])
            begins = [count.nbytes] * len(ranks)
            for rows in everything:
                width = rows.dtype.itemsize * math.prod(rows.shape[1:])
                ends = [begin + count * width for begin, count in zip(begins, counts, strict=True)]
                parts = [rank[begin:end] for rank, begin, end in zip(ranks, begins, ends, strict=True)]
                np.concatenate(parts, out=_bytes_of(rows))
                begins = ends
        return everything

    def _begin(self, owner: np.int64, *arguments: Any) -> Array:
        with self._alone():
            if self._waited_before is None:
                self._waited_before = self.exchange.waited
            self._under_way[int(owner)] = self._background.submit(self._reduce_for_all, *arguments)
        return np.zeros(1, np.int32)

    def _reduce_for_all(self, *arguments: Any) -> list[Array]:
        with self._ending_for_all():
            return self._reduce_now(*arguments)

    def _end(self, owner: np.int64) -> list[Array]:
        with self._alone():
            return self._under_way.pop(int(owner)).result()

    def _await(self) -> None:
        """Wait for what is under way, whose own waiting for others the cell has not seen."""
        wait(self._under_way.values())
        if self._waited_before is not None:
            self._unseen += self.exchange.waited - self._waited_before
            self._waited_before = None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One call at a time, and timed, after what is under way; what goes wrong in it ends it for the peers, too."""
        with self._ending_for_all(), self._lock:
            begun = time.monotonic()
            self._await()
            yield
            self._seconds += time.monotonic() - begun

    @contextmanager
    def _ending_for_all(self) -> Iterator[None]:
        try:
            yield
        except PeerLost:
            raise
        except BaseException as error:
            self.exchange.abort(f"a rank failed: {type(error).__name__}: {error}")
            raise

    def _reduce(self, tensors: Sequence[tf.Tensor], averaged: int, weight: tf.Tensor | float) -> list[tf.Tensor]:
        if tf.executing_eagerly():
            arrays = (np.asarray(tensor) for tensor in tensors)
            totals = self.reduce_arrays(np.int64(averaged), np.float32(weight), *arrays)
            return [tf.convert_to_tensor(total) for total in totals]
        before = tf.constant(averaged, tf.int64), tf.cast(weight, tf.float32)
        return self._turns.reduce(self._reducing, tensors, *before)


def _bytes_of(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
