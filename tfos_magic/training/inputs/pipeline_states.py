"""States that the functions of a pipeline draw random numbers from, such as those of Keras's seed generators.

All iterators of a dataset change one state. One that was left before its end, as after a look at the first batch, has
run ahead by as much as its prefetching came to, which is another number of draws on each rank.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfos_magic.training.collectives import Collectives
from tfos_magic.training.inputs.marks import inputs_of

LARGEST = 16
"""Elements of a state; Keras's seed generators have two, ``tf.random.Generator`` three."""

QUIET, PATIENCE = 0.1, 2.0
"""Seconds without a draw after which nobody draws, and for which this is waited for at most."""


class PipelineStates:
    """The small variables of integers that functions on the way to ``dataset`` use, in one order on all ranks."""

    def __init__(self, dataset: Any) -> None:
        self._handles = list({id(handle): (handle, dtype) for handle, dtype in _states(dataset)}.values())

    def __len__(self) -> int:
        return len(self._handles)

    def take_over(self, collectives: Collectives) -> None:
        """Set all of them to what they are on rank 0, when no iterator that was left fills its buffer any more."""
        values, deadline = self._values(), time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            time.sleep(QUIET)
            before, values = values, self._values()
            if all(bool(tf.reduce_all(a == b)) for a, b in zip(before, values, strict=True)):
                break
        for (handle, dtype), value in zip(self._handles, collectives.broadcast(values), strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.cast(value, dtype))

    def _values(self) -> list[tf.Tensor]:
        return [tf.cast(tf.raw_ops.ReadVariableOp(resource=h, dtype=dtype), tf.int64) for h, dtype in self._handles]


def _states(dataset: Any) -> Iterator[tuple[Any, tf.DType]]:
    for wrapper in getattr(dataset, "_functions", list)():
        for tensor in wrapper.function.captured_inputs:
            known = getattr(tensor, "_handle_data", None)
            if tensor.dtype == tf.resource and known is not None and known.shape_and_type:
                kind = known.shape_and_type[0]
                dtype, shape = tf.dtypes.as_dtype(kind.dtype), tf.TensorShape(kind.shape)
                if dtype.is_integer and shape.num_elements() and shape.num_elements() <= LARGEST:
                    yield tensor, dtype
    for source in inputs_of(dataset):
        yield from _states(source)
