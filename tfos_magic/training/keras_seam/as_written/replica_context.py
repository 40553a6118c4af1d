"""``tf.distribute`` with one replica on each worker: what a program's step asks of it, over this cluster's sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib

from tfos_magic.training.collectives import Collectives
from tfos_magic.training.keras_seam.seams import replace

MEAN = tf.distribute.ReduceOp.MEAN


class ReplicaStrategy(tf.distribute.Strategy):
    """The strategy that a program finds in force within ``strategy.run``, with variables that are plain ones.

    While ``applying()``, an optimizer has sums of all replicas, and what it adds up by itself stays as it is.
    """

    def __init__(self, collectives: Collectives, applying: Callable[[], bool]) -> None:
        super().__init__(_Extended(self, collectives, applying))


def install(stack: ExitStack) -> None:
    """Let optimizers that were made outside of replicas make and set their variables in one, until ``stack`` closes."""
    owner = distribute_lib._DefaultDistributionExtended
    replace(stack, owner, "update", _update)
    replace(stack, owner, "colocate_vars_with", lambda extended, variable: nullcontext())  # there is one device


def _update(
    extended: Any, variable: Any, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, group: bool = True
) -> Any:
    return fn(variable, *args, **(kwargs or {}))


class _Extended(distribute_lib._DefaultDistributionExtended):
    """TensorFlow's default, one replica that has all to itself, but for what goes from replica to replica."""

    def __init__(self, strategy: ReplicaStrategy, collectives: Collectives, applying: Callable[[], bool]) -> None:
        super().__init__(strategy)
        self._collectives, self._applying = collectives, applying

    def _scope(self, strategy: ReplicaStrategy) -> Any:
        return distribute_lib.StrategyExtendedV2._scope(self, strategy)

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        return next_creator(**kwargs)

    def _call_for_each_replica(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with tf.distribute.ReplicaContext(self._container_strategy(), self._collectives.rank):
            return fn(*args, **kwargs)

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> list[tf.Tensor]:
        if self._applying():
            return [value for value, _ in value_destination_pairs]
        sums = self._collectives.all_reduce([tf.convert_to_tensor(value) for value, _ in value_destination_pairs])
        if reduce_op is not MEAN:
            return sums
        return [tf.cast(total / self._collectives.size, total.dtype) for total in sums]

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> tf.Tensor:
        return self._batch_reduce_to(reduce_op, [(value, destinations)], options)[0]

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: int, options: Any) -> tf.Tensor:
        order = list(range(value.shape.rank))
        order[0], order[axis] = order[axis], order[0]
        return tf.transpose(self._collectives.concat([tf.transpose(value, order)])[0], order)

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._collectives.size
