"""Arrow columns as NumPy blocks and back. Whole columns at a time; numbers are not copied where their layout allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_magic.columns.arrow import as_elements, refuse_nulls
from tfos_magic.columns.columns import BYTES
from tfos_magic.columns.file_types import plain_array
from tfos_magic.columns.numpy_arrays import element_values
from tfos_magic.columns.vectors import vector_values
from tfos_magic.errors import DataError
from tfos_magic.frames.checks.ranges import refuse_unfit
from tfos_magic.frames.specs import ColumnSpec, arrow_type


@dataclass(frozen=True)
class RaggedRows:
    """Cells that differ in shape: their elements one after another, and where each list of them begins, outermost
    first."""

    elements: Any
    splits: Sequence[Any]

    def __len__(self) -> int:
        return len(self.splits[0]) - 1


def to_numpy(array: pa.Array, spec: ColumnSpec) -> Any:
    """View a column as NumPy, shape ``(rows, *cell)``.

    Strings and binary give an object array of ``bytes``. Raises :class:`DataError` for nulls, for cells of different
    shapes, and for shapes other than the spec says.
    """
    refuse_nulls(array, spec.name)
    if spec.vector:
        array = vector_values(array)
    lengths = [len(array)]
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        lengths.append(_common_length(array, spec, len(lengths) - 1))
        array = array.flatten()
        refuse_nulls(array, spec.name, "inside its arrays")
    return _elements(array, spec).reshape(lengths)


def from_numpy(values: Any, spec: ColumnSpec) -> pa.Array:
    """Give ``(rows, *cell)``, or :class:`RaggedRows`, as the column that Spark reads: lists of elements."""
    if isinstance(values, RaggedRows):
        array = _arrow_elements(values.elements, spec)
        for splits in reversed(values.splits):
            array = pa.ListArray.from_arrays(pa.array(splits, pa.int32()), array)
        return array
    flat = np.ascontiguousarray(values).reshape(-1)
    array = _arrow_elements(flat, spec)
    for axis in range(values.ndim - 1, 0, -1):
        count, length = int(np.prod(values.shape[:axis])), values.shape[axis]
        offsets = pa.array(np.arange(count + 1, dtype=np.int64) * length, pa.int32())
        array = pa.ListArray.from_arrays(offsets, array)
    return array


def cell_shapes(array: pa.Array, spec: ColumnSpec) -> Any:
    """The shape of every cell, ``(rows, rank)`` of int64. Raises :class:`DataError` for a cell ragged in itself."""
    refuse_nulls(array, spec.name)
    if spec.vector:
        array = vector_values(array)
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        return np.zeros((len(array), 0), np.int64)
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    inner = cell_shapes(array.flatten(), spec)
    return np.column_stack([lengths, _common_shapes(lengths, inner, spec)])


def _common_length(array: pa.Array, spec: ColumnSpec, axis: int) -> int:
    expected = spec.shape[axis]
    if not len(array):
        return expected or 0
    lengths = pc.min_max(pc.list_value_length(array)).as_py()
    few, many = lengths["min"], lengths["max"]
    if few != many:
        raise DataError(
            f"column {spec.name!r} has cells of {few} and of {many} values: pad or cut them to one length, or use "
            "map_rows, which takes rows of different lengths"
        )
    if expected is not None and few != expected:
        raise DataError(
            f"column {spec.name!r} is {spec.describe()} by its metadata, and has cells of {few} values: tfs.analyze "
            "the DataFrame anew, or correct the shape with tfs.append_shape"
        )
    return int(few)


def _common_shapes(lengths: Any, inner: Any, spec: ColumnSpec) -> Any:
    """The one shape of the cells inside each cell; zeros where a cell is empty."""
    common = np.zeros((len(lengths), inner.shape[1]), np.int64)
    filled = np.flatnonzero(lengths)
    if not inner.shape[1] or not len(filled):
        return common
    starts = (np.cumsum(lengths) - lengths)[filled]
    common[filled] = np.minimum.reduceat(inner, starts, axis=0)
    if (common[filled] != np.maximum.reduceat(inner, starts, axis=0)).any():
        raise DataError(f"column {spec.name!r} has a cell whose inner arrays differ in length: pad them to one length")
    return common


def _elements(array: pa.Array, spec: ColumnSpec) -> Any:
    array = plain_array(array)
    stored = spec.stored if array.type == arrow_type(spec) else spec.dtype
    elements = as_elements(array, stored, spec.of_time)
    if elements is None:
        raise DataError(f"column {spec.name!r} is {spec.dtype} by its schema, and came as {array.type}")
    values = element_values(elements, stored)
    if stored == BYTES:
        return values
    # The schema notes a narrower dtype than Spark has: rows that came by a union may not have it.
    refuse_unfit(values, spec.dtype, spec.name)
    if values.dtype == np.dtype(spec.dtype):
        return values
    narrowed = values.astype(spec.dtype)
    if values.dtype.kind == "f" and (rounded := (narrowed != values) & ~np.isnan(values)).any():
        raise DataError(
            f"column {spec.name!r} is noted as {spec.dtype}, which rounds {values[rounded][0].item()!r}, as rows that "
            f"came by a union may have it: drop the note, F.col({spec.name!r}).alias({spec.name!r}, metadata={{}})"
        )
    return narrowed


def _arrow_elements(flat: Any, spec: ColumnSpec) -> pa.Array:
    if spec.dtype != BYTES:
        return pa.array(flat if flat.dtype == np.dtype(spec.stored) else flat.astype(spec.stored))
    array = pa.array(flat, pa.binary())
    if not spec.text:
        return array
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        raise DataError(
            f"output {spec.name!r} holds bytes that are no UTF-8 text: declare it, schema='{spec.name} binary'"
        ) from None
