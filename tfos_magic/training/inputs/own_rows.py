"""Rows that each worker has by itself, as Spark feeds them to a program: how they are batched, and how they end."""

from __future__ import annotations

from typing import Any, TypeVar

import tensorflow as tf

from tfos_magic.training.inputs.marks import inputs_of, mark_sharded

_OWN, _CUT, _TOGETHER = "_tfos_own_rows", "_tfos_own_cut", "_tfos_ends_together"
_D = TypeVar("_D")


def mark_own(dataset: _D) -> _D:
    """Declare that each worker's copy of ``dataset`` has rows of its own, however many; returns it."""
    setattr(dataset, _OWN, True)
    return mark_sharded(dataset, asked=True)


def is_own(dataset: Any) -> bool:
    """Whether ``dataset`` is made from one of a worker's own rows."""
    return bool(getattr(dataset, _OWN, False)) or any(map(is_own, inputs_of(dataset)))


def mark_cut(dataset: _D) -> _D:
    """Declare that the batches of ``dataset`` are this worker's, of its own rows; returns it."""
    setattr(dataset, _CUT, True)
    return mark_own(dataset)


def mark_together(dataset: _D) -> _D:
    """Declare that a loop of the program's own over ``dataset`` ends where the first worker has no more; returns it."""
    setattr(dataset, _TOGETHER, True)
    return dataset


def ends_together(dataset: Any) -> bool:
    """Whether loops over ``dataset`` end on all workers with the first."""
    return bool(getattr(dataset, _TOGETHER, False)) or any(map(ends_together, inputs_of(dataset)))


def own_batches(dataset: Any, rank: int, size: int) -> Any:
    """Give ``dataset``, whose batches are global, with a rank's share of as many rows in each, from its own rows.

    As in ``tf.distribute``, a batch of 64 rows for two workers is 32 rows of each.
    """
    batch = _batch_size(dataset)
    if size > 1 and batch > 0 and not _is_cut(dataset):
        dataset = dataset.rebatch((rank + 1) * batch // size - rank * batch // size)
    return mark_cut(dataset)


def own_share(dataset: Any, rank: int, size: int) -> Any:
    """Give what a rank reads of ``dataset`` in ``fit``, as :func:`own_batches` has it.

    When its rows have ended, batches without rows follow, so that the ranks can end together.
    """
    dataset = own_batches(dataset, rank, size)
    if size == 1:
        return dataset
    empty = tf.data.Dataset.from_tensors(tf.nest.map_structure(_without_rows, dataset.element_spec)).repeat()
    return mark_sharded(dataset.concatenate(empty), ends_alike=True, asked=True)


def _is_cut(dataset: Any) -> bool:
    return bool(getattr(dataset, _CUT, False)) or any(map(_is_cut, inputs_of(dataset)))


def _batch_size(dataset: Any) -> int:
    from tensorflow.python.data.experimental.ops import distribute

    return int(distribute.compute_batch_size(dataset))


def _without_rows(spec: Any) -> tf.Tensor:
    return tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype)
