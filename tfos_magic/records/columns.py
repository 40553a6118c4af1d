"""Which columns of a DataFrame become tensors, and how: decided from the schema, before any job starts."""

from __future__ import annotations

import base64
import dataclasses
import difflib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from tfos_magic.errors import DataError
from tfos_magic.records.missing import NOTHING_MISSING, Missing

SCALAR, LIST, BYTES, STRUCT, VECTOR = "scalar", "list", "bytes", "struct", "vector"
COLUMN_KEY = b"tfos.column"

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


@dataclass(frozen=True)
class Column:
    """One column on its way to a tensor.

    ``kind`` is ``scalar`` (tensor of shape ``(rows,)``), ``bytes`` (``(rows,)`` of ``tf.string``), ``list`` of
    ``depth`` levels (``(rows, width, ...)``), ``vector`` (a list of Spark ML's) or ``struct``, whose ``fields`` are
    columns themselves; ``dtype`` is NumPy's name of the element type, ``bytes`` for bytes. ``unit`` is what numbers of
    a date or a time count.

    ``fill`` takes the place of nulls, ``pad`` that of values behind the end of short lists, up to ``pad_to`` by level
    or, where that is empty, to the longest; both are text, None meaning that there must be none. ``masked`` columns
    bring a column of booleans along, false where a null was. ``shape`` holds the length of a list by level, None where
    lists differ; it is None as a whole until all rows are known.
    """

    name: str
    kind: str
    dtype: str = ""
    depth: int = 1
    unit: str = ""
    fill: str | None = None
    pad: str | None = None
    pad_to: tuple[int, ...] = ()
    masked: bool = False
    fields: tuple[Column, ...] = ()
    shape: tuple[int | None, ...] | None = None

    @property
    def mask(self) -> Column:
        """The column of booleans that a masked column brings along."""
        return Column(mask_name(self.name), SCALAR, "bool")

    @property
    def is_list(self) -> bool:
        return self.kind in (LIST, VECTOR)

    @property
    def ragged_rank(self) -> int:
        """How many levels of a list with known shape differ in length, those around them included."""
        differing = [level + 1 for level, width in enumerate(self.shape or ()) if width is None]
        return max(differing, default=0)

    def __str__(self) -> str:
        if self.kind == STRUCT:
            return f"{self.name} {{{', '.join(map(str, self.fields))}}}"
        widths = (self.shape or ("?",) * self.depth) if self.is_list else ()
        sizes = ", ".join("varying" if width is None else str(width) for width in widths)
        dtype = "string" if self.dtype == BYTES else self.dtype
        return f"{self.name} {dtype} (rows,{' ' + sizes if sizes else ''})" + (f" {self.unit}" if self.unit else "")


@dataclass(frozen=True)
class FeedPlan:
    """The columns a feed carries, in order: the features, then the label where there is one."""

    columns: tuple[Column, ...]
    label: str | None = None

    @property
    def sources(self) -> list[str]:
        """The DataFrame's columns to read."""
        return [column.name for column in self.columns]

    @property
    def names(self) -> list[str]:
        """The names of the tensors: of the columns, and of the masks that some bring along."""
        return [column.name for column in self._wire_columns]

    @property
    def features(self) -> list[str]:
        return [name for name in self.names if name != self.label]

    @property
    def schema(self) -> str:
        """The Arrow schema of every batch of the feed, as base64 of its IPC form; shapes of lists are not known yet."""
        return encode_schema(pa.schema([column_field(column) for column in self._wire_columns]))

    @property
    def _wire_columns(self) -> list[Column]:
        return [wire for column in self.columns for wire in ([column, column.mask] if column.masked else [column])]


def plan_feed(
    schema: Any,
    features: Sequence[str] | None = None,
    label: str | None = None,
    missing: Missing = NOTHING_MISSING,
) -> FeedPlan:
    """Plan a feed from a Spark ``StructType`` (of a classic or a Connect session alike).

    ``features`` of ``None`` means every column but the label. Numbers, booleans, decimals (as float64), dates and times
    (as int64), strings, binary, arrays of all these at any depth, Spark ML vectors, and structs become tensors.
    ``missing`` says what nulls and short arrays become. Raises :class:`DataError` for an unknown, repeated, unsupported
    or contradictory column.
    """
    types = {field.name: field.dataType for field in schema.fields}
    _refuse_twins([field.name for field in schema.fields])
    wanted = list(types) if features is None else list(features)
    if features is not None and label is not None and label in wanted:
        raise DataError(f"column {label!r} is both the label and a feature: leave it out of the features")
    _refuse_twins(wanted)
    wanted = [name for name in wanted if name != label]
    if not wanted:
        raise DataError("no feature columns are left: name at least one column besides the label")
    names = wanted if label is None else [*wanted, label]
    columns = [_column(name, types, "label" if name == label else "column") for name in names]
    plan = FeedPlan(tuple(_with_missing(columns, missing, label)), label)
    _refuse_twins(plan.names)
    return plan


def encode_schema(schema: pa.Schema) -> str:
    """Give an Arrow schema as base64 of its IPC form."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def decode_schema(text: str) -> pa.Schema:
    """Read what :func:`encode_schema` gave."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def column_field(column: Column) -> pa.Field:
    """The field of a wire schema that carries ``column``, and all that is known of it."""
    known = {key: value for key, value in dataclasses.asdict(column).items() if value not in (None, "", (), False)}
    return pa.field(column.name, wire_type(column), nullable=False, metadata={COLUMN_KEY: json.dumps(known).encode()})


def field_column(field: pa.Field) -> Column:
    """Read what :func:`column_field` wrote."""
    return _decode_column(field.metadata[COLUMN_KEY])


def wire_type(column: Column) -> pa.DataType:
    """Arrow type in which a column travels: structs of lists of elements, none of which is ever null."""
    if column.kind == STRUCT:
        return pa.struct([pa.field(each.name, wire_type(each), nullable=False) for each in column.fields])
    kind = element_type(column.dtype)
    for _ in range(column.depth if column.is_list else 0):
        kind = pa.list_(pa.field("item", kind, nullable=False))
    return kind


def element_type(dtype: str) -> pa.DataType:
    """Arrow type in which elements of ``dtype`` travel; booleans take a byte each, as they do in tensors."""
    if dtype == BYTES:
        return pa.binary()
    return pa.uint8() if dtype == "bool" else pa.from_numpy_dtype(dtype)


def mask_name(name: str) -> str:
    """What the mask of a column is called."""
    return f"{name}_mask"


@lru_cache(maxsize=1024)
def _decode_column(text: bytes) -> Column:
    return _column_of(json.loads(text))


def _column_of(known: dict[str, Any]) -> Column:
    lists = {key: tuple(known[key]) for key in ("shape", "pad_to") if known.get(key) is not None}
    fields = tuple(_column_of(each) for each in known.get("fields", ()))
    return Column(**{**known, **lists, "fields": fields})


def _column(name: str, types: dict[str, Any], role: str) -> Column:
    if name not in types:
        raise DataError(f"the DataFrame has no {role} {name!r}: {suggestion(name, list(types))}")
    try:
        return _typed(name, types[name])
    except _Unfit as unfit:
        raise DataError(
            f"{role} {name!r} of type {types[name].simpleString()} cannot become a tensor: {unfit}, or name only other "
            "columns as features"
        ) from None


class _Unfit(Exception):
    """No tensor can be made of a type; the text says what to do."""


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
    _refuse_twins([field for field, _ in fields])
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


def _with_missing(columns: list[Column], missing: Missing, label: str | None) -> list[Column]:
    """Give the columns with what is said of their nulls and their lengths."""
    known = _paths(columns)
    for name in missing.columns:
        if name not in known:
            raise DataError(f"--fill, --pad or --null-mask names a column {name!r}: {suggestion(name, known)}")
    return [
        dataclasses.replace(_treated(column, (column.name,), missing, label), masked=column.name in missing.masks)
        for column in columns
    ]


def _treated(column: Column, path: tuple[str, ...], missing: Missing, label: str | None) -> Column:
    if column.kind == STRUCT:
        if path[0] in missing.masks:
            raise DataError(f"--null-mask: {path[0]!r} is a struct; select its fields as columns to mask them")
        fields = [_treated(each, (*path, each.name), missing, label) for each in column.fields]
        return dataclasses.replace(column, fields=tuple(fields))
    # A row whose label is made up teaches something: that takes the label's own name.
    fill = missing.fill_of(path, column.dtype, by_name=path[0] == label)
    pad, lengths = missing.pad_of(path, column.dtype, column.depth) if column.is_list else (None, ())
    return dataclasses.replace(column, fill=fill, pad=pad, pad_to=lengths)


def _paths(columns: Sequence[Column]) -> list[str]:
    """The names by which options know columns: their own, and those of fields with dots."""
    inner = [f"{column.name}.{path}" for column in columns for path in _paths(column.fields)]
    return [column.name for column in columns] + inner


def suggestion(name: str, known: list[str]) -> str:
    """What to say of a name that is not among ``known``: the nearest one, or all there are."""
    folded = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return f"did you mean {folded[near[0]]!r}?" if near else f"it has {', '.join(map(repr, known)) or 'no columns'}"


def _refuse_twins(names: list[str]) -> None:
    twins = [name for name, count in Counter(names).items() if count > 1]
    if twins:
        raise DataError(f"column {twins[0]!r} is named twice: rename or drop one, names of tensors are unique")
