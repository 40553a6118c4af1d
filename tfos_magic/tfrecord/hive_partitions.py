"""Columns that the names of folders hold, as in ``sales/day=3/part-0.tfrecord``, and files left out by their values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from tfos_magic.errors import DataError
from tfos_magic.tfrecord.record_files import DataFile

_NULL = "__HIVE_DEFAULT_PARTITION__"
_KINDS = (pa.int32(), pa.int64(), pa.string())
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
    """The columns in the folders of files: int, bigint where that is too short, or string.

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
    return pa.schema([pa.field(name, _kind([values[name] for values in known])) for name in known[0]])


def _kind(values: Sequence[str | None]) -> pa.DataType:
    for kind in _KINDS:
        try:
            for value in values:
                pa.scalar(value, pa.string()).cast(kind)
        except pa.ArrowInvalid:
            continue
        return kind
    return pa.string()


def typed(file: DataFile, fields: Sequence[pa.Field]) -> dict[str, pa.Scalar]:
    """The values of a file's folders, in the types of ``fields``. Raises :class:`DataError` for one that is not."""
    values, scalars = values_of(file), {}
    for field in fields:
        try:
            scalars[field.name] = pa.scalar(values[field.name], pa.string()).cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise DataError(
                f"{file.url} lies in a folder {field.name}={values[field.name]}, which is no {field.type}: declare "
                f"{field.name!r} as string in the schema"
            ) from None
    return scalars


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
