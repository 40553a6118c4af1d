"""Wire columns as the flat NumPy arrays that cross into TensorFlow. Numbers are not copied where they lie as needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tfos_magic.columns.columns import BYTES, STRUCT, Column, field_column
from tfos_magic.columns.missing import value_of
from tfos_magic.errors import FeedError

Array = npt.NDArray[Any]


def tensor_arrays(batch: pa.RecordBatch) -> list[Array]:
    """Give a wire batch of settled schema as flat NumPy arrays, column after column.

    A scalar gives one of shape ``(rows,)``, a list of one length (or a padded one) one of ``(rows, width, ...)``, a
    ragged one its values and the splits of every ragged level (int64, as those of ``tf.RaggedTensor``), a struct what
    its fields give. Strings and binary are objects of ``bytes``.
    """
    return [
        flat
        for field, array in zip(batch.schema, batch.columns, strict=True)
        for flat in _flats(array, field_column(field))
    ]


def settled_shape(column: Column) -> tuple[int | None, ...]:
    """The lengths of a list by level. Raises :class:`FeedError` while they are not known."""
    if column.shape is None:
        raise FeedError(f"the shape of column {column.name!r} is not settled yet: commit the feed with its schema")
    return column.shape


def _flats(array: pa.Array, column: Column) -> list[Array]:
    if column.kind == STRUCT:
        return [flat for i, each in enumerate(column.fields) for flat in _flats(array.field(i), each)]
    if not column.is_list:
        return [element_values(array, column.dtype)]
    shape, ragged = settled_shape(column), column.ragged_rank
    splits = []
    for _ in range(ragged):
        splits.append(_splits(array))
        array = array.flatten()
    return [_dense(array, [width or 0 for width in shape[ragged:]], column), *splits]


def _dense(array: pa.Array, shape: list[int], column: Column) -> Array:
    """Give lists as ``(rows, *shape)``, those that are shorter filled up."""
    if not shape:
        return element_values(array, column.dtype)
    width, *inner = shape
    values = _dense(array.flatten(), inner, column)
    if len(values) == len(array) * width:
        return values.reshape(len(array), width, *inner)
    padded = np.full((len(array), width, *inner), _padding(column), values.dtype)
    padded[np.arange(width) < np.diff(_splits(array))[:, None]] = values
    return padded


def _padding(column: Column) -> Any:
    text = column.pad if column.pad is not None else column.fill
    return value_of(text if text is not None else "" if column.dtype == BYTES else "0", column.dtype)


def _splits(array: pa.Array) -> npt.NDArray[np.int64]:
    if not len(array):
        return np.zeros(1, np.int64)
    offsets = array.offsets.to_numpy().astype(np.int64)
    return np.asarray(offsets - offsets[0])


def element_values(array: pa.Array, dtype: str) -> Array:
    """Elements as they travel, without nulls: numbers as they lie there, bytes as objects."""
    if dtype == BYTES:
        return np.asarray(array.to_numpy(zero_copy_only=False), np.object_)
    return np.asarray(array.to_numpy(zero_copy_only=True).view(np.dtype(dtype)))
