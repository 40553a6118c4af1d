"""A feed as a ``tf.data.Dataset``: whole batches, read from the agent's spool where they lie."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tensorflow as tf

from tfos_magic.errors import DataError, FeedError
from tfos_magic.records.arrow import column_values, field_dtype
from tfos_magic.records.columns import decode_schema
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
        size = _common_size(self.bounds)
        return [self.rows.spec(name, size) for name in self.wanted]

    def read(self, step: int) -> list[npt.NDArray[Any]]:
        return self.rows.read(self.wanted, int(self.bounds[step]), int(self.bounds[step + 1]))


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
        for tensor, spec in zip(tensors, specs, strict=True):
            tensor.set_shape(spec.shape)
        return _structure(dict(zip(wanted, tensors, strict=True)), names, label)

    return load


class SpooledRows:
    """The rows of a committed feed on one rank, mapped into memory; addressed by their index in this rank's order."""

    def __init__(self, handle: dict[str, Any]) -> None:
        self._schema = decode_schema(handle["schema"])
        self._map = pa.py_buffer(_map_file(handle["path"], bytes.fromhex(handle["mark"])))
        self._blocks = np.array(handle["blocks"], dtype=np.int64).reshape(-1, 3)
        self._starts = np.concatenate([[0], np.cumsum(self._blocks[:, 2])])
        self._columns: list[dict[str, Any] | None] = [None] * len(self._blocks)

    @property
    def names(self) -> list[str]:
        return list(self._schema.names)

    def spec(self, name: str, rows: int | None) -> tf.TensorSpec:
        """Shape and dtype of a batch of column ``name``."""
        field = self._schema.field(name)
        dtype = field_dtype(field)
        width = [field.type.list_size] if pa.types.is_fixed_size_list(field.type) else []
        return tf.TensorSpec([rows, *width], tf.string if dtype == "bytes" else tf.as_dtype(dtype), name)

    def read(self, names: Sequence[str], start: int, stop: int) -> list[npt.NDArray[Any]]:
        """Give rows ``[start, stop)`` of the named columns; a view of the file where they lie in one block."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, stop, side="left"))
        if stop <= start:
            return [self._empty(name) for name in names]
        blocks = [(self._block(i), int(self._starts[i])) for i in range(first, last)]
        return [_join([block[name][max(0, start - at) : stop - at] for block, at in blocks]) for name in names]

    def _block(self, index: int) -> dict[str, Any]:
        columns = self._columns[index]
        if columns is None:
            offset, size, _ = self._blocks[index].tolist()
            batch = pa.ipc.read_record_batch(self._map.slice(offset, size), self._schema)
            columns = {
                field.name: column_values(array, field_dtype(field))
                for field, array in zip(self._schema, batch.columns, strict=True)
            }
            self._columns[index] = columns
        return columns

    def _empty(self, name: str) -> npt.NDArray[Any]:
        spec = self.spec(name, 0)
        return np.empty(spec.shape, dtype=object if spec.dtype == tf.string else spec.dtype.as_numpy_dtype)


def _map_file(path: str, mark: bytes) -> mmap.mmap:
    """Map the spool's file for reading, after a look that the path still leads to it."""
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise FeedError(f"the rows of this feed are gone ({error}): run the cell again to feed them anew") from error
    if mapped[: len(mark)] != mark:
        raise FeedError("the rows of this feed were released: run the cell again to feed them anew")
    return mapped


def _join(parts: list[Any]) -> npt.NDArray[Any]:
    if isinstance(parts[0], pa.Array):
        return pa.concat_arrays(parts).to_numpy(zero_copy_only=False)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _features(known: list[str], features: Sequence[str] | None, label: str | None) -> list[str]:
    names = [name for name in known if name != label] if features is None else list(features)
    for name in names if label is None else [*names, label]:
        if name not in known:
            raise DataError(
                f"this feed has no column {name!r}: it carries {', '.join(map(repr, known))}; feed it again with it"
            )
    return names


def _structure(tensors: dict[str, tf.Tensor], names: list[str], label: str | None) -> Any:
    if label is None:
        return tensors
    features = tensors[names[0]] if len(names) == 1 else {name: tensors[name] for name in names}
    return features, tensors[label]


def _common_size(bounds: npt.NDArray[np.int64]) -> int | None:
    """The number of rows that all batches have, or ``None`` where they differ."""
    sizes = np.diff(bounds)
    return int(sizes[0]) if len(sizes) and (sizes == sizes[0]).all() else None
