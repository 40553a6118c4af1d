"""The ranks of a run by the names that users of Horovod know: ``rank``, ``size``, ``allreduce`` and the rest.

A cell finds them in ``tfos``, as ``import tfos_magic as tfos`` gives them too. Outside of a run, and in a run with one
worker, they act as rank 0 of 1. All functions on tensors work eagerly and inside ``tf.function``, and every rank must
call them in the same order; where one does not, all raise :class:`ClusterError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfos_magic.errors import TrainingError
from tfos_magic.training.collectives import Collectives
from tfos_magic.training.context import Calls, RunContext
from tfos_magic.training.inputs.marks import is_sharded, mark_sharded
from tfos_magic.training.inputs.sharding import shard_batches
from tfos_magic.transport.messages import TOGETHER

_runs: list[RunContext] = []
_alone = Collectives()


@contextmanager
def current(context: RunContext) -> Iterator[None]:
    """Let the functions of this module speak of the run of ``context``."""
    _runs.append(context)
    try:
        yield
    finally:
        _runs.pop()


def context() -> RunContext:
    """Give the run that this process is in. Raises :class:`TrainingError` outside of one."""
    if not _runs:
        raise TrainingError("no run is active here: call this in programs that workers run")
    return _runs[-1]


def rank() -> int:
    """Give the number of this worker, from 0."""
    _calls().rank = True
    return _collectives().rank


def size() -> int:
    """Give the number of workers."""
    return _collectives().size


def place() -> tuple[int, int]:
    """Give rank and size to what shares out rows by itself: the cell has not asked for them."""
    return _collectives().rank, _collectives().size


def local_rank() -> int:
    """Give the number of this worker among those on its host, from 0."""
    _calls().rank = True
    return _runs[-1].local_rank if _runs else 0


def seed() -> int:
    """Give the run's seed, the same on all workers; 0 outside of a run."""
    return _runs[-1].seed if _runs else 0


def peers() -> Collectives | None:
    """Give what the workers meet in; None where there is one, and in runs whose workers do not wait for each other."""
    together = bool(_runs) and _runs[-1].strategy in TOGETHER and size() > 1
    return _collectives() if together else None


@tf.autograph.experimental.do_not_convert
def allreduce(tensor: Any, op: str = "mean") -> Any:
    """Give the mean, or the ``"sum"``, of ``tensor`` over the workers, the same bits on each.

    ``tensor`` may be a number, an array or a tensor, or a structure of those; shapes and dtypes must be the same on all
    workers. Means of integers are float32. A gradient flows through it, by the same operation on the gradients.
    """
    if op not in ("mean", "sum"):
        raise TrainingError(f"allreduce takes op='mean' or op='sum', not {op!r}")
    _calls().exchanged += 1
    leaves = [_number(leaf, op == "mean") for leaf in tf.nest.flatten(tensor)]
    return tf.nest.pack_sequence_as(tensor, _summed(leaves, 1.0 / size() if op == "mean" else 1.0))


@tf.autograph.experimental.do_not_convert
def broadcast(tensor: Any, root: int = 0) -> Any:
    """Give every worker the ``tensor``, or structure of tensors, of worker ``root``."""
    if not 0 <= root < size():
        raise TrainingError(f"broadcast from root={root}: workers are numbered from 0 to {size() - 1}")
    leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(tensor)]
    sent = _collectives().broadcast([_carried(leaf) for leaf in leaves], root)
    return tf.nest.pack_sequence_as(tensor, [tf.cast(s, leaf.dtype) for s, leaf in zip(sent, leaves, strict=True)])


@tf.autograph.experimental.do_not_convert
def allgather(tensor: Any) -> tf.Tensor:
    """Concatenate the workers' tensors along the first axis, whose length may differ; scalars become a vector."""
    _calls().exchanged += 1
    leaf = tf.convert_to_tensor(tensor)
    rows = _carried(leaf)
    return tf.cast(_collectives().concat([rows if rows.shape.rank else rows[tf.newaxis]])[0], leaf.dtype)


@tf.autograph.experimental.do_not_convert
def barrier() -> None:
    """Return when every worker has come here. Then all see the files that rank 0 had written."""
    _collectives().barrier()
    if _runs:
        _runs[-1].refresh()


def shard(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Give this worker's rows of every batch of ``dataset``, a ``tf.data.Dataset`` of batches that all workers have.

    What is made of it, and ``fit`` on it, knows that it is a share. A dataset that is one already, such as one made
    from a Spark DataFrame, is given back as it is. A worker's share of a batch may have no rows; in a loop of the
    cell's own Keras layers are then called on a row of zeros, which weighs nothing in the gradients.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise TrainingError(
            f"shard() takes a tf.data.Dataset of batches, not {type(dataset).__name__}: use "
            "tfos.shard(tf.data.Dataset.from_tensor_slices(arrays).batch(n)). fit() splits arrays by itself."
        )
    if is_sharded(dataset):
        return dataset
    shares = shard_batches(dataset, *place()) if size() > 1 else dataset.prefetch(tf.data.AUTOTUNE)
    return mark_sharded(shares, asked=True, by_rank=True)


def _calls() -> Calls:
    return _runs[-1].calls if _runs else Calls()


def _collectives() -> Collectives:
    return _runs[-1].collectives if _runs else _alone


def _number(value: Any, floating: bool) -> tf.Tensor:
    tensor = _carried(tf.convert_to_tensor(value))
    return tf.cast(tensor, tf.float32) if floating and not tensor.dtype.is_floating else tensor


def _carried(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor that can be added: booleans and small integers as int32. Raises TrainingError for others."""
    if tensor.dtype.is_bool or (tensor.dtype.is_integer and tensor.dtype.size < 4):
        return tf.cast(tensor, tf.int32)
    if tensor.dtype.is_floating or tensor.dtype in (tf.int32, tf.int64):
        return tensor
    raise TrainingError(f"a tensor of dtype {tensor.dtype.name} cannot be sent between workers: send numbers")


def _summed(leaves: list[tf.Tensor], factor: float) -> list[tf.Tensor]:
    collectives = _collectives()

    def reduced(tensors: Any) -> list[tf.Tensor]:
        totals = collectives.all_reduce(tensors)
        return [total * tf.cast(factor, total.dtype) if factor != 1.0 else total for total in totals]

    @tf.custom_gradient
    def reduce(*tensors: tf.Tensor) -> Any:
        return reduced(tensors), lambda *upstream: reduced(upstream)

    return list(reduce(*leaves)) if leaves else []
