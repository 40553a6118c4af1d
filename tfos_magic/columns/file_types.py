"""Columns of files: from their Arrow types to the columns of a feed, and from their batches to wire batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tfos_magic.columns.columns import BYTES, LIST, SCALAR, STRUCT, Column, FeedPlan
from tfos_magic.columns.missing import NOTHING_MISSING, Missing
from tfos_magic.columns.schema_plan import UNITS, chosen, refuse_twins, suggestion, with_missing
from tfos_magic.columns.selection import EVERYTHING, Selection
from tfos_magic.errors import DataError


def plan_files(schema: pa.Schema, selection: Selection = EVERYTHING, missing: Missing = NOTHING_MISSING) -> FeedPlan:
    """Plan what files of an Arrow ``schema`` give of the ``selection``, as
    :func:`~tfos_magic.columns.schema_plan.plan_feed` does for Spark.

    Unsigned numbers and float16 keep their types. Raises :class:`DataError` as it does.
    """
    names = chosen(schema.names, selection)
    columns = []
    for name in names:
        if name not in schema.names:
            raise DataError(f"the files have no column {name!r}. {suggestion(name, schema.names)}")
        columns.append(column_of_arrow(name, schema.field(name).type))
    return with_missing(columns, missing, selection)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type in which a column of type ``kind`` is taken: one for all kinds of text, one for all lists, and so on.

    Times count microseconds, as Spark's do; times of a day nanoseconds.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(each.name, plain_type(each.type)) for each in kind])
    if any(is_text(kind) for is_text in (types.is_string, types.is_large_string, types.is_string_view)):
        return pa.binary()
    if types.is_large_binary(kind) or types.is_fixed_size_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_date(kind):
        return pa.date32()
    if types.is_time(kind):
        return pa.time64("ns")
    return pa.duration("us") if types.is_duration(kind) else kind


def plain_batch(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Give the named columns in their :func:`plain_type`; those that are of it are not copied."""
    arrays = [batch.column(name) for name in names]
    return pa.record_batch([plain_array(array) for array in arrays], names=list(names))


def plain_array(array: pa.Array) -> pa.Array:
    """An array in its :func:`plain_type`."""
    kind = plain_type(array.type)
    return array if array.type == kind else array.cast(kind, safe=False)


def column_of_arrow(name: str, kind: pa.DataType) -> Column:
    """What a column of an Arrow type is as a tensor. Raises :class:`DataError` for a type that cannot become one."""
    return _column(name, plain_type(kind))


def _column(name: str, kind: pa.DataType) -> Column:
    if pa.types.is_struct(kind):
        refuse_twins([each.name for each in kind])
        return Column(name, STRUCT, fields=tuple(_column(each.name, each.type) for each in kind))
    depth, element = 0, kind
    while pa.types.is_list(element):
        element, depth = element.value_type, depth + 1
    dtype, unit = _dtype(name, element, kind)
    if depth:
        return Column(name, LIST, dtype, depth, unit)
    return Column(name, BYTES if dtype == BYTES else SCALAR, dtype, unit=unit)


def _dtype(name: str, element: pa.DataType, kind: pa.DataType) -> tuple[str, str]:
    """NumPy's name of an element type, and what its numbers count where they are dates or times."""
    types = pa.types
    if types.is_binary(element):
        return BYTES, ""
    if types.is_boolean(element):
        return "bool", ""
    if types.is_integer(element) or types.is_floating(element):
        return str(np.dtype(element.to_pandas_dtype()).name), ""
    if types.is_decimal(element):
        return "float64", ""
    if types.is_date32(element):
        return "int64", UNITS["date"]
    if types.is_timestamp(element):
        return "int64", UNITS["timestamp" if element.tz else "timestamp_ntz"]
    if types.is_time(element):
        return "int64", UNITS["time"]
    if types.is_duration(element):
        return "int64", UNITS["daytimeinterval"]
    if types.is_null(element):
        raise DataError(
            f"column {name!r} has no value that shows its type: give it, as by schema={{{name!r}: 'double'}}, or leave "
            "the column out"
        )
    raise DataError(
        f"column {name!r} of type {kind} cannot become a tensor: leave it out, or turn it into numbers or text"
    )
