"""Which columns of a DataFrame become tensors, and of what kind: decided from the schema, before any job starts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tfos_magic.columns.columns import BYTES, LIST, SCALAR, STRUCT, VECTOR, Column, FeedPlan
from tfos_magic.columns.missing import NOTHING_MISSING, Missing
from tfos_magic.columns.selection import EVERYTHING, Selection
from tfos_magic.errors import DataError, did_you_mean

NUMBERS = {
    "boolean": "bool",
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
}
TEXT = ("string", "binary", "varchar", "char")
UNITS = {
    "date": "days since 1970-01-01",
    "timestamp": "microseconds since 1970-01-01 UTC",
    "timestamp_ntz": "microseconds since 1970-01-01, local",
    "time": "nanoseconds of the day",
    "daytimeinterval": "microseconds",
}
_REMEDIES = {
    "map": "take its values as an array, F.map_values({name!r}), or one of them, F.col({name!r})['key']",
    "void": "it holds nothing but nulls, so leave it out",
    "matrixudt": "turn it into an array of numbers before",
}


def plan_feed(schema: Any, selection: Selection = EVERYTHING, missing: Missing = NOTHING_MISSING) -> FeedPlan:
    """Plan a feed of the ``selection`` from a Spark ``StructType`` (of a classic or a Connect session alike).

    Numbers, booleans, decimals (as float64), dates and times
    (as int64), strings, binary, arrays of all these at any depth, Spark ML vectors, and structs become tensors.
    ``missing`` says what nulls and short arrays become. Raises :class:`DataError` for an unknown, repeated, unsupported
    or contradictory column.
    """
    types = {field.name: field.dataType for field in schema.fields}
    names = chosen([field.name for field in schema.fields], selection)
    columns = [_column(name, types, selection.role_of(name)) for name in names]
    return with_missing(columns, missing, selection)


def chosen(known: Sequence[str], selection: Selection) -> list[str]:
    """The names of the columns to carry, targets last. Raises :class:`DataError` as :func:`plan_feed` does."""
    refuse_twins(known)
    features = selection.features_of(known)
    refuse_twins(features)
    if not features:
        raise DataError("no feature columns are left: name at least one column besides the label")
    return [*features, *selection.targets]


def with_missing(columns: list[Column], missing: Missing, selection: Selection) -> FeedPlan:
    """The plan of these columns, with what is said of their nulls and lengths."""
    _check(columns, selection)
    plan = FeedPlan(tuple(_with_missing(columns, missing, selection.targets)), tuple(selection.targets))
    refuse_twins(plan.names)
    return plan


def _check(columns: Sequence[Column], selection: Selection) -> None:
    for column in columns:
        no_number = column.kind == STRUCT or column.dtype == BYTES
        if column.name == selection.weight and (no_number or column.is_list):
            raise DataError(f"a weight is a number for each row, and column {column.name!r} is {column}")
        if selection.matrix and no_number and column.name not in selection.targets:
            raise DataError(
                f"a matrix holds numbers, and column {column.name!r} has none: name the columns that have as features, "
                "or leave --matrix out"
            )


def _column(name: str, types: dict[str, Any], role: str) -> Column:
    if name not in types and role == "label" and set(name.split(",")) <= types.keys():
        raise DataError(
            f"a label is one column, and {name!r} names several: give all as features, and make targets of them in the "
            "cell with map()"
        )
    if name not in types:
        raise DataError(f"the DataFrame has no {role} {name!r}. {suggestion(name, list(types))}")
    return column_of(name, types[name], role, ", or name only other columns as features")


class _Unfit(Exception):
    """No tensor can be made of a type; the text says what to do."""


def column_of(name: str, spark_type: Any, role: str = "column", otherwise: str = "") -> Column:
    """What a column of a Spark type is as a tensor.

    Raises :class:`DataError`, which says what to do, and ``otherwise``, for a type that cannot become one.
    """
    try:
        return _typed(name, spark_type)
    except _Unfit as unfit:
        raise DataError(
            f"{role} {name!r} of type {spark_type.simpleString()} cannot become a tensor: {unfit}{otherwise}"
        ) from None


def _typed(name: str, spark_type: Any) -> Column:
    """The column of a type; nested ones name their fields by themselves."""
    kind = spark_type.typeName()
    if kind == "vectorudt":
        return Column(name, VECTOR, "float64")
    if kind == "struct":
        return _struct(name, spark_type)
    depth = 0
    while spark_type.typeName() == "array":
        spark_type, depth = spark_type.elementType, depth + 1
    dtype = _dtype(name, spark_type, depth)
    unit = UNITS.get(spark_type.typeName(), "")
    if depth:
        return Column(name, LIST, dtype, depth, unit)
    return Column(name, BYTES if dtype == BYTES else SCALAR, dtype, unit=unit)


def _struct(name: str, spark_type: Any) -> Column:
    fields = [(field.name, field.dataType) for field in spark_type.fields]
    if not fields:
        raise _Unfit(f"the struct {name!r} has no fields, so leave it out")
    refuse_twins([field for field, _ in fields])
    return Column(name, STRUCT, fields=tuple(_typed(field, kind) for field, kind in fields))


def _dtype(name: str, spark_type: Any, depth: int) -> str:
    kind = spark_type.typeName()
    if kind in NUMBERS:
        return NUMBERS[kind]
    if kind in TEXT:
        return BYTES
    if kind == "decimal":
        return "float64"
    if kind in UNITS:
        return "int64"
    if depth and kind == "struct":
        raise _Unfit(f"take each field as an array of its own, such as F.col({name!r})[{spark_type.names[0]!r}]")
    if depth and kind == "vectorudt":
        raise _Unfit(f"make it an array of arrays, F.transform({name!r}, vector_to_array)")
    raise _Unfit(
        _REMEDIES.get(kind, "turn it into a number, an array of numbers, a string or binary").format(name=name)
    )


def _with_missing(columns: list[Column], missing: Missing, targets: Sequence[str]) -> list[Column]:
    """Give the columns with what is said of their nulls and their lengths."""
    known = _paths(columns)
    for name in missing.columns:
        if name not in known:
            raise DataError(f"--fill, --pad or --null-mask names a column {name!r}. {suggestion(name, known)}")
    return [
        dataclasses.replace(_treated(column, (column.name,), missing, targets), masked=column.name in missing.masks)
        for column in columns
    ]


def _treated(column: Column, path: tuple[str, ...], missing: Missing, targets: Sequence[str]) -> Column:
    if column.kind == STRUCT:
        name = ".".join(path)
        if masked := [mask for mask in missing.masks if mask == name or mask.startswith(f"{name}.")]:
            raise DataError(
                f"--null-mask {masked[0]}: {name!r} is a struct; select its fields as columns to mask them, such as "
                f"df.select('{name}.*', ...)"
            )
        fields = [_treated(each, (*path, each.name), missing, targets) for each in column.fields]
        return dataclasses.replace(column, fields=tuple(fields))
    # A row whose label is made up teaches something: that takes the label's own name.
    fill = missing.fill_of(path, column.dtype, by_name=path[0] in targets)
    pad, lengths = missing.pad_of(path, column.dtype, column.depth) if column.is_list else (None, ())
    return dataclasses.replace(column, fill=fill, pad=pad, pad_to=lengths)


def _paths(columns: Sequence[Column]) -> list[str]:
    """The names by which options know columns: their own, and those of fields with dots."""
    inner = [f"{column.name}.{path}" for column in columns for path in _paths(column.fields)]
    return [column.name for column in columns] + inner


def suggestion(name: str, known: list[str]) -> str:
    """What to say of a column that is not among ``known``: the nearest one, or all there are."""
    return did_you_mean(name, known, f"It has {', '.join(map(repr, known)) or 'no columns'}.")


def refuse_twins(names: Sequence[str]) -> None:
    """Raise :class:`DataError` where a name comes twice."""
    twins = [name for name, count in Counter(names).items() if count > 1]
    if twins:
        raise DataError(f"column {twins[0]!r} is named twice: rename or drop one, names of tensors are unique")
