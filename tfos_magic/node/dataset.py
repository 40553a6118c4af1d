"""A feed as a ``tf.data.Dataset``: whole batches, read from the agent's spool where they lie."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfos_magic.errors import DataError, FeedError
from tfos_magic.node.rows import SpooledRows, assemble, tensor_arrays, tensor_specs
from tfos_magic.records.shares import batch_boundaries
from tfos_magic.training.sharding import mark_sharded


def feed_dataset(
    handle: dict[str, Any], *, batch_size: int, features: Sequence[str] | None = None, label: str | None = None
) -> tf.data.Dataset:
    """Give this rank's share of every global batch of ``batch_size`` rows, in the DataFrame's order.

    ``handle`` is what :meth:`Spool.handle` gave. With ``label``: ``(features, label)``, the features being one tensor
    for one column and a dict by name for several (``None``: all other columns). Without: a dict of the columns. Scalars
    have the shape ``(rows,)``, lists ``(rows, width)``; a share may have 0 rows, and all ranks have ``ceil(total /
    batch_size)`` steps. The mapping of the file is closed with the dataset. Raises :class:`DataError` for a column the
    feed does not hold and :class:`FeedError` when the spool's file is gone.
    """
    if batch_size < 1:
        raise DataError(f"the batch size is {batch_size}: it must be at least 1")
    rows = SpooledRows(handle)
    names = _features(rows.names, features, label)
    wanted = names if label is None else [*names, label]
    partitions = [(int(partition), int(count)) for partition, count in handle["partitions"]]
    bounds = batch_boundaries(partitions, batch_size=batch_size, rank=handle["rank"], world=handle["world"])
    batches = _Batches(rows, wanted, bounds)
    dataset = tf.data.Dataset.range(len(bounds) - 1).map(_loader(batches, names, label)).prefetch(tf.data.AUTOTUNE)
    # Datasets made from this one, and their iterators, keep it, and so the batches, for as long as they are used.
    dataset._tfos_batches = batches
    return mark_sharded(dataset)


@dataclass(frozen=True)
class _Batches:
    """The columns that a dataset wants, and where its batches begin among this rank's rows."""

    rows: SpooledRows
    wanted: list[str]
    bounds: npt.NDArray[np.int64]

    def specs(self) -> list[tf.TensorSpec]:
        return tensor_specs(self.rows.schema, self.wanted, _common_size(self.bounds))

    def read(self, step: int) -> list[npt.NDArray[Any]]:
        return tensor_arrays(self.rows.read(self.wanted, int(self.bounds[step]), int(self.bounds[step + 1])))


def _loader(batches: _Batches, names: list[str], label: str | None) -> Callable[[tf.Tensor], Any]:
    """Give the function from a step to its tensors.

    TensorFlow ties a Python function to the process's default graph for good, so the function must not hold the file.
    """
    specs, wanted, held = batches.specs(), batches.wanted, weakref.ref(batches)

    def fetch(step: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
        alive = held()
        if alive is None:
            raise FeedError("the dataset of this feed is gone while it is still read: keep it in a variable")
        return alive.read(int(step))

    def load(step: tf.Tensor) -> Any:
        tensors = tf.numpy_function(fetch, [step], [spec.dtype for spec in specs], stateful=False)
        return _structure(assemble(wanted, specs, tensors), names, label)

    return load


def _features(known: list[str], features: Sequence[str] | None, label: str | None) -> list[str]:
    names = [name for name in known if name != label] if features is None else list(features)
    for name in names if label is None else [*names, label]:
        if name not in known:
            raise DataError(
                f"this feed has no column {name!r}: it carries {', '.join(map(repr, known))}; feed it again with it"
            )
    return names


def _structure(tensors: dict[str, Any], names: list[str], label: str | None) -> Any:
    if label is None:
        return tensors
    features = tensors[names[0]] if len(names) == 1 else {name: tensors[name] for name in names}
    return features, tensors[label]


def _common_size(bounds: npt.NDArray[np.int64]) -> int | None:
    """The number of rows that all batches have, or ``None`` where they differ."""
    sizes = np.diff(bounds)
    return int(sizes[0]) if len(sizes) and (sizes == sizes[0]).all() else None
