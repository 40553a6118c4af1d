"""The way of a column from Spark's Arrow batches to the wire. Whole batches at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tfos_magic.columns.columns import BYTES, STRUCT, VECTOR, Column, FeedPlan, decode_schema, element_type, wire_type
from tfos_magic.columns.list_lengths import ListLengths, Path, Range, check_widths, lengths_seen, settle
from tfos_magic.columns.missing import value_of
from tfos_magic.columns.vectors import vector_values
from tfos_magic.errors import DataError, FeedError

__all__ = ["ListLengths", "WireConverter", "agree", "check_widths", "refuse_nulls", "settle", "take_rows"]


class WireConverter:
    """Turns the Arrow batches of one Spark partition into wire batches.

    ``widths`` tells how long the lists were so far. A ``schema`` that is settled is what batches must keep to.
    """

    def __init__(self, plan: FeedPlan, schema: pa.Schema | None = None) -> None:
        self._columns = plan.columns
        self._settled = schema
        self.schema: pa.Schema = schema or decode_schema(plan.schema)
        self.widths = ListLengths()

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give the plan's columns, in its order, as wire columns; all batches of a feed have the same schema.

        Numbers of ``batch`` and of its lists are not copied. Raises :class:`DataError`, naming the column, for nulls
        that are to become nothing else, and for lists that do not have the lengths that are settled.
        """
        seen: dict[Path, tuple[Range, ...]] = {}
        arrays = []
        for index, column in enumerate(self._columns):
            array = batch.column(index)
            arrays.append(_wire_array(array, column, (column.name,), seen))
            if column.masked:
                arrays.append(array.is_valid().cast(pa.uint8()))
        widths = ListLengths(seen)
        if self._settled is not None:
            check_widths(self._settled, widths)
        self.widths = self.widths.merge(widths)
        return pa.record_batch(arrays, schema=self.schema)


def agree(planned: pa.Schema, known: pa.Schema | None, arrived: pa.Schema) -> pa.Schema:
    """Give the schema that all batches of a feed share. Raises :class:`FeedError` where ``arrived`` is another."""
    if arrived.names != planned.names or arrived.types != planned.types:
        raise FeedError(f"the feed was opened for columns {planned.names}, other ones came: feed the DataFrame again")
    return known or planned


def take_rows(batch: pa.RecordBatch, rows: npt.NDArray[np.int64] | pa.Array) -> pa.RecordBatch:
    """Give the rows of these numbers; faster than Arrow's own ``take`` for lists of one length."""
    numbers = pa.array(rows) if isinstance(rows, np.ndarray) else rows
    return pa.RecordBatch.from_arrays([_take(array, numbers) for array in batch.columns], schema=batch.schema)


def refuse_nulls(array: pa.Array, name: str, where: str = "") -> None:
    """Raise :class:`DataError`, naming the column and ``where`` in it, when ``array`` has nulls."""
    if array.null_count:
        raise DataError(
            f"column {name!r} has nulls{' ' + where if where else ''}, which no tensor can hold: drop the rows with "
            f"df.dropna(subset=[{name!r}]) or fill the values, for example with F.coalesce"
        )


def _wire_array(array: pa.Array, column: Column, path: Path, seen: dict[Path, tuple[Range, ...]]) -> pa.Array:
    """Convert one column; ``seen`` gets the lengths of lists in it."""
    if column.kind == STRUCT:
        # flatten() makes the fields of a null struct null.
        fields = zip(array.flatten(), column.fields, strict=True)
        arrays = [_wire_array(values, each, (*path, each.name), seen) for values, each in fields]
        return pa.StructArray.from_arrays(arrays, fields=list(wire_type(column)))
    if column.kind == VECTOR:
        array = vector_values(array)
    if not column.is_list:
        return _elements(array, column, path)
    levels: list[Range] = []
    wire = _lists(array, column, path, column.depth, levels)
    seen[path] = tuple(levels)
    return wire


def _lists(array: pa.Array, column: Column, path: Path, depth: int, levels: list[Range]) -> pa.Array:
    """Convert lists of ``depth`` levels. Null ones become empty; they do not count among the lengths seen."""
    if not depth:
        return _elements(array, column, path, "inside its arrays")
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        raise _changed(array, path, "an array")
    _check_nulls(array, column, path, "inside its arrays" if levels else "")
    levels.append(lengths_seen(array))
    values = _lists(array.flatten(), column, path, depth - 1, levels)
    return pa.ListArray.from_arrays(_offsets(array), values, type=_list_of(values.type))


def _offsets(array: pa.Array) -> pa.Array:
    """Where the lists begin in ``array.flatten()``."""
    if array.null_count:
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        return _running(lengths)
    offsets = array.offsets
    if offsets[0].as_py() == 0 and offsets.type == pa.int32():
        return offsets
    starts = offsets.to_numpy()
    return pa.array((starts - starts[0]).astype(np.int32))


def _elements(array: pa.Array, column: Column, path: Path, where: str = "") -> pa.Array:
    _check_nulls(array, column, path, where)
    values = as_elements(array, column.dtype, bool(column.unit))
    if values is None:
        raise _changed(array, path, str(element_type(column.dtype)))
    if not values.null_count:
        return values
    text = column.fill if column.fill is not None else "0" if column.dtype != BYTES else ""
    return values.fill_null(pa.scalar(value_of(text, column.dtype)).cast(values.type))


def as_elements(array: pa.Array, dtype: str, of_time: bool = False) -> pa.Array | None:
    """Elements in the type in which those of ``dtype`` travel, nulls still among them; None where they are others.

    ``of_time`` takes dates and times as the numbers that they are.
    """
    kind, target_type, types = array.type, element_type(dtype), pa.types
    if kind == target_type:
        return array
    if dtype == BYTES and (types.is_string(kind) or types.is_large_string(kind) or types.is_large_binary(kind)):
        return array.cast(target_type)
    if dtype == "bool" and types.is_boolean(kind):
        return array.cast(target_type)
    if dtype == "float64" and types.is_decimal(kind):
        return _decimals(array)
    if of_time and types.is_date32(kind):
        return array.view(pa.int32()).cast(target_type)
    if of_time and types.is_temporal(kind):
        return array.view(target_type)
    return None


def _decimals(array: pa.Array) -> pa.Array:
    """Decimals as the nearest float64, as Spark casts them; Arrow's own cast is off by a last bit now and then."""
    return array.cast(pa.string()).cast(pa.float64())


def _check_nulls(array: pa.Array, column: Column, path: Path, where: str = "") -> None:
    if not array.null_count or column.fill is not None or (column.masked and not where):
        return
    name = ".".join(path)
    raise DataError(
        f"column {name!r} has nulls{' ' + where if where else ''} ({array.null_count} of the {len(array)} values "
        f"looked at), which no tensor can hold: fill them with --fill {name}=VALUE (in tfos.dataset, with "
        f"fill={{{name!r}: VALUE}}), or drop the rows with df.dropna(subset=[{path[0]!r}])"
    )


def _changed(array: pa.Array, path: Path, expected: str) -> FeedError:
    return FeedError(
        f"column {'.'.join(path)!r} came as {array.type}, not {expected}: its type changed since the feed was planned"
    )


def _take(array: pa.Array, numbers: pa.Array) -> pa.Array:
    fixed = _as_fixed(array) if pa.types.is_list(array.type) else None
    if fixed is None:
        return array.take(numbers)
    return _as_lists(fixed.take(numbers))


def _as_fixed(array: pa.Array) -> pa.Array | None:
    """View lists of one length, and such lists in them, as fixed-size lists of numbers; None where they are not."""
    if not pa.types.is_list(array.type):
        return array if pa.types.is_primitive(array.type) else None
    lengths = np.diff(array.offsets.to_numpy())
    if not len(lengths) or not lengths[0] or (lengths != lengths[0]).any():
        return None
    values = _as_fixed(array.flatten())
    return None if values is None else pa.FixedSizeListArray.from_arrays(values, int(lengths[0]))


def _as_lists(array: pa.Array) -> pa.Array:
    if not pa.types.is_fixed_size_list(array.type):
        return array
    values = _as_lists(array.flatten())
    offsets = pa.array(np.arange(len(array) + 1, dtype=np.int32) * array.type.list_size)
    return pa.ListArray.from_arrays(offsets, values, type=_list_of(values.type))


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=False))


def _running(lengths: Any) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
