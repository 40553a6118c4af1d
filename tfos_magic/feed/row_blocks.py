"""Rows of any Python objects as bytes, between a task and a program: pickled, their NumPy arrays side by side."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

_WHOLE = ""
"""What rows are that are arrays themselves, and no tuples or lists of columns."""


def encode_rows(rows: list[Any]) -> bytes:
    """Give rows as bytes. Arrays of one shape and dtype, in each row at the same place, travel as one array."""
    first = rows[0]
    if type(first) is np.ndarray:
        kind, columns = _WHOLE, [rows]
    elif type(first) in (tuple, list) and any(type(value) is np.ndarray for value in first):
        if not all(type(row) is type(first) and len(row) == len(first) for row in rows):
            return _pickled(rows)
        kind, columns = type(first).__name__, list(map(list, zip(*rows, strict=True)))
    else:
        return _pickled(rows)
    return _pickled((kind, [_stacked(column) for column in columns]))


def encode_batch(batch: pa.RecordBatch) -> bytes:
    """Give the rows of an Arrow batch as bytes: tuples, in which lists of numbers are NumPy arrays."""
    return _pickled(("tuple", [_column(column) for column in batch.columns]))


def decode_rows(data: bytes) -> list[Any]:
    """The rows that were encoded; their arrays are views."""
    rows = pickle.loads(data)
    if isinstance(rows, list):
        return rows
    kind, columns = rows
    if kind == _WHOLE:
        return list(columns[0])
    return list(zip(*columns, strict=True)) if kind == "tuple" else list(map(list, zip(*columns, strict=True)))


def _stacked(column: Sequence[Any]) -> Any:
    first = column[0]
    if type(first) is not np.ndarray or first.dtype.hasobject:  # of other classes a mask would be lost
        return column
    alike = all(type(v) is np.ndarray and v.dtype == first.dtype and v.shape == first.shape for v in column)
    return np.stack(column) if alike else column


def _column(column: pa.Array) -> Any:
    if column.null_count or not pa.types.is_list(column.type) or not _is_number(column.type.value_type):
        return column.to_pylist()
    values = column.flatten()
    if values.null_count:
        return column.to_pylist()
    numbers, lengths = values.to_numpy(zero_copy_only=False), np.diff(column.offsets.to_numpy())
    if len(lengths) and (lengths == lengths[0]).all():
        return numbers.reshape(len(lengths), int(lengths[0]))
    return np.split(numbers, np.cumsum(lengths)[:-1])


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _pickled(value: Any) -> bytes:
    """Classes of the program itself go along, for the other side has another ``__main__``."""
    with suppress(pickle.PicklingError, AttributeError, TypeError):
        if b"__main__" not in (data := pickle.dumps(value, pickle.HIGHEST_PROTOCOL)):
            return data
    import cloudpickle

    return bytes(cloudpickle.dumps(value))
