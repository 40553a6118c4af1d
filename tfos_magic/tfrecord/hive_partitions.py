"""Columns that the names of folders hold, as in ``sales/day=3/part-0.tfrecord``, and files left out by their values."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from tfos_magic.errors import DataError
from tfos_magic.tfrecord.record_files import DataFile

_NULL = "__HIVE_DEFAULT_PARTITION__"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[dDfF]?|[+-]?(NaN|Infinity)", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d)?", re.ASCII)
_DECIMAL_DIGITS = 38
# Kinds of values that go together, and the column's type then; the first line that has them all counts.
_COMMON: tuple[tuple[set[str], pa.DataType], ...] = (
    (set(), pa.string()),
    ({"int"}, pa.int32()),
    ({"int", "long"}, pa.int64()),
    ({"int", "long", "decimal"}, pa.float64()),
    ({"int", "double"}, pa.float64()),
    ({"date"}, pa.date32()),
    ({"date", "time"}, pa.timestamp("us")),
)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda value, among: value in among,
}


def values_of(file: DataFile) -> dict[str, str | None]:
    """The values in the folders between what was given to ``load`` and the file, outermost first; None for null."""
    pairs = (folder.partition("=") for folder in file.below.split("/")[:-1] if "=" in folder)
    return {unquote(name): None if value == _NULL else unquote(value) for name, _, value in pairs}


def folder_schema(files: Sequence[DataFile]) -> pa.Schema:
    """The columns in the folders of files, in the types that Spark infers for them.

    These are int, bigint, double, date, timestamp or string. Whole numbers beyond bigint, Spark's decimals, are
    doubles, and timestamps are local ones (Spark's ``timestamp_ntz``), for the names of folders tell no time zone.
    Raises :class:`DataError` where some files lie in folders that others do not have.
    """
    if not files:
        return pa.schema([])
    known = [values_of(file) for file in files]
    for file, values in zip(files, known, strict=True):
        if list(values) != list(known[0]):
            raise DataError(
                f"{files[0].url} lies in folders of {list(known[0])} and {file.url} of {list(values)}: give the folder "
                "of one kind, or a glob of its files"
            )
    return pa.schema([pa.field(name, _type({values[name] for values in known})) for name in known[0]])


def _type(values: set[str | None]) -> pa.DataType:
    kinds = {_kind(value) for value in values if value is not None}
    return next((kind for together, kind in _COMMON if kinds <= together), pa.string())


def _kind(value: str) -> str:
    """What Spark's ``PartitioningUtils.inferPartitionColumnValue`` takes a folder's value for."""
    if _NUMBER.fullmatch(value):
        if _WHOLE.fullmatch(value) and -(1 << 63) <= int(value) < 1 << 63:
            return "int" if -(1 << 31) <= int(value) < 1 << 31 else "long"
        return "decimal" if _is_decimal(value) else "double"
    for pattern, name, kind in ((_DATE, "date", pa.date32()), (_TIME, "time", pa.timestamp("us"))):
        if pattern.fullmatch(value) and _is_a(value, kind):
            return name
    return "string"


def _is_decimal(number: str) -> bool:
    """Whether a number has no digits behind the point, as it is written, and not too many before it."""
    if number[-1].isalpha():
        return False
    _, digits, exponent = Decimal(number).as_tuple()
    return isinstance(exponent, int) and exponent >= 0 and len(digits) <= _DECIMAL_DIGITS


def _is_a(value: str, kind: pa.DataType) -> bool:
    try:
        _scalar(value, kind)
    except pa.ArrowInvalid:
        return False
    return True


def _scalar(value: str | None, kind: pa.DataType) -> pa.Scalar:
    if value is not None and not pa.types.is_string(kind) and _NUMBER.fullmatch(value):
        value = value.lstrip("+").rstrip("dDfF")  # which Java takes, and Arrow does not
    return pa.scalar(value, pa.string()).cast(kind)


def typed(file: DataFile, fields: Sequence[pa.Field]) -> dict[str, pa.Scalar]:
    """The values of a file's folders, in the types of ``fields``. Raises :class:`DataError` for one that is not."""
    values, scalars = values_of(file), {}
    for field in fields:
        try:
            scalars[field.name] = _scalar(values[field.name], field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise DataError(
                f"{file.url} lies in a folder {field.name}={values[field.name]}, which cannot be read as {field.type}: "
                f"declare {field.name!r} as string in the schema"
            ) from None
    return scalars


def with_folders(
    batch: pa.RecordBatch, values: Mapping[str, pa.Scalar], fields: Sequence[pa.Field] | pa.Schema
) -> pa.RecordBatch:
    """Give ``fields`` of a file's batch, those of its folders with the same of ``values`` in all rows."""
    columns = [
        pa.repeat(values[field.name], len(batch)) if field.name in values else batch.column(field.name)
        for field in fields
    ]
    return pa.record_batch(columns, schema=pa.schema(fields))


def fits(values: dict[str, Any], condition: Any) -> bool:
    """False where a file's ``values`` rule a condition of Spark's out; true as well where that cannot be told."""
    name = condition.attribute[0] if len(getattr(condition, "attribute", ())) == 1 else None
    if name not in values:
        return True
    value, kind = values[name], type(condition).__name__
    if kind in ("IsNull", "IsNotNull"):
        return (value is None) == (kind == "IsNull")
    compare = _COMPARISONS.get(kind)
    if compare is None:
        return True
    return value is not None and bool(compare(value, condition.value))
