"""The way of a column: from Spark's Arrow batches to the wire, and from the wire to NumPy. Whole batches at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_magic.errors import DataError, FeedError
from tfos_magic.records.columns import BYTES, DTYPE_KEY, SCALAR, Column, FeedPlan, element_type


class WireConverter:
    """Turns the Arrow batches of one Spark partition into wire batches, and remembers the widths of list columns."""

    def __init__(self, plan: FeedPlan) -> None:
        self._columns = plan.columns
        self._widths: dict[str, int] = {}

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give ``batch`` with list columns as fixed-size lists, booleans as bytes and text as binary.

        Numbers are not copied. Raises :class:`DataError` for nulls and for lists of different lengths, naming the
        column.
        """
        arrays = [self._wire_array(batch.column(i), column) for i, column in enumerate(self._columns)]
        return pa.record_batch(arrays, schema=self._schema(arrays))

    def _wire_array(self, array: pa.Array, column: Column) -> pa.Array:
        refuse_nulls(array, column.name)
        if column.kind == BYTES:
            return array.cast(pa.binary())
        if column.kind == SCALAR:
            return _elements(array, column)
        width = self._width(array, column.name)
        values = array.flatten()
        refuse_nulls(values, column.name, "inside its arrays")
        return pa.FixedSizeListArray.from_arrays(_elements(values, column), width)

    def _width(self, array: pa.Array, name: str) -> int:
        lengths = pc.min_max(pc.list_value_length(array)).as_py()
        known = self._widths.setdefault(name, lengths["min"])
        for length in lengths.values():
            if length != known:
                raise ragged(name, known, length)
        if not known:
            raise DataError(f"column {name!r} has empty arrays: drop these rows or leave the column out")
        return known

    def _schema(self, arrays: list[pa.Array]) -> pa.Schema:
        return pa.schema(
            [
                pa.field(column.name, array.type, nullable=False, metadata={DTYPE_KEY: column.dtype.encode()})
                for column, array in zip(self._columns, arrays, strict=True)
            ]
        )


def agree(planned: pa.Schema, known: pa.Schema | None, arrived: pa.Schema) -> pa.Schema:
    """Give the schema all partitions of a feed share: ``known``, or ``arrived`` if it is the first.

    Raises :class:`DataError` where a list column has another width than in another partition, and :class:`FeedError`
    where ``arrived`` is not what was ``planned``.
    """
    if known is not None and arrived.equals(known):
        return known
    if arrived.names != planned.names or not all(map(_fits, planned.types, arrived.types)):
        raise FeedError(f"the feed was opened for columns {planned.names}, other ones came: feed the DataFrame again")
    if known is None:
        return arrived
    for name, before, now in zip(known.names, known.types, arrived.types, strict=True):
        if before != now:
            raise ragged(name, before.list_size, now.list_size)
    return known


def ragged(name: str, one: int, other: int) -> DataError:
    """The error for a list column whose rows have different lengths."""
    few, many = sorted((one, other))
    return DataError(
        f"column {name!r} has rows of {few} and {many} values: pad or cut them to one length first, for example "
        f"F.slice(F.concat({name!r}, F.array_repeat(F.lit(0), {many})), 1, {many})"
    )


def column_values(array: pa.Array, dtype: str) -> Any:
    """View a numeric wire column as NumPy, ``(rows,)`` or ``(rows, width)``; a bytes column stays an Arrow array."""
    if dtype == "bytes":
        return array
    if not pa.types.is_fixed_size_list(array.type):
        return array.to_numpy(zero_copy_only=True).view(np.dtype(dtype))
    flat = array.flatten().to_numpy(zero_copy_only=True).view(np.dtype(dtype))
    return flat.reshape(len(array), array.type.list_size)


def field_dtype(field: pa.Field) -> str:
    """NumPy's name of a wire column's element type, ``bytes`` for bytes."""
    return str(field.metadata[DTYPE_KEY].decode())


def _elements(array: pa.Array, column: Column) -> pa.Array:
    wanted = element_type(column.dtype)
    if array.type == wanted:
        return array
    if column.dtype == "bool" and pa.types.is_boolean(array.type):
        return array.cast(wanted)
    raise FeedError(
        f"column {column.name!r} came as {array.type}, not {wanted}: its type changed since the feed was planned"
    )


def _fits(planned: pa.DataType, arrived: pa.DataType) -> bool:
    if pa.types.is_list(planned):
        return pa.types.is_fixed_size_list(arrived) and arrived.value_type == planned.value_type
    return bool(planned == arrived)


def refuse_nulls(array: pa.Array, name: str, where: str = "") -> None:
    """Raise :class:`DataError`, naming the column and ``where`` in it, when ``array`` has nulls."""
    if array.null_count:
        raise DataError(
            f"column {name!r} has nulls{' ' + where if where else ''}, which no tensor can hold: drop the rows with "
            f"df.dropna(subset=[{name!r}]) or fill the values, for example with F.coalesce"
        )
