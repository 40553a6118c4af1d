"""Rows that each worker has by itself, as Spark feeds them to a program: how they are batched, and how they end."""

from __future__ import annotations

from typing import Any, TypeVar

import tensorflow as tf

from tfos_magic.training.inputs.marks import inputs_of, mark_sharded

_OWN = "_tfos_own_rows"
_D = TypeVar("_D")


def mark_own(dataset: _D) -> _D:
    """Declare that each worker's copy of ``dataset`` has rows of its own, however many; returns it."""
    setattr(dataset, _OWN, True)
    return mark_sharded(dataset, asked=True)


def is_own(dataset: Any) -> bool:
    """Whether ``dataset`` is made from one of a worker's own rows."""
    return bool(getattr(dataset, _OWN, False)) or any(map(is_own, inputs_of(dataset)))


def own_share(dataset: Any, rank: int, size: int) -> Any:
    """Give what a rank reads of ``dataset``, whose batches are global: its share of as many, from its own rows.

    As in ``tf.distribute``, a batch of 64 rows for two workers is 32 rows of each. When they have ended, batches
    without rows follow, so that the ranks can end together.
    """
    batch = _batch_size(dataset)
    if size > 1 and batch > 0:
        dataset = dataset.rebatch((rank + 1) * batch // size - rank * batch // size)
    if size == 1:
        return dataset
    empty = tf.data.Dataset.from_tensors(tf.nest.map_structure(_without_rows, dataset.element_spec)).repeat()
    return mark_sharded(dataset.concatenate(empty), ends_alike=True, asked=True)


def _batch_size(dataset: Any) -> int:
    from tensorflow.python.data.experimental.ops import distribute

    return int(distribute.compute_batch_size(dataset))


def _without_rows(spec: Any) -> tf.Tensor:
    return tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype)
