"""Which columns of a DataFrame become tensors, and of what dtype: decided from the schema, before any job starts."""

from __future__ import annotations

import base64
import difflib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from tfos_magic.errors import DataError

SCALAR, LIST, BYTES = "scalar", "list", "bytes"
DTYPE_KEY = b"tfos.dtype"

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
_REMEDIES = {
    "decimal": "cast it, for example F.col({name!r}).cast('double')",
    "date": "turn it into a number, for example F.unix_date({name!r})",
    "timestamp": "turn it into a number, for example F.unix_timestamp({name!r})",
    "timestamp_ntz": "turn it into a number, for example F.unix_timestamp({name!r})",
    "vectorudt": "turn it into an array with pyspark.ml.functions.vector_to_array({name!r}, 'float32')",
    "struct": "select its fields, for example '{name}.*'",
    "map": "turn it into an array of numbers, for example F.map_values({name!r})",
    "void": "it holds nothing but nulls: leave it out",
}


@dataclass(frozen=True)
class Column:
    """One column on its way to a tensor.

    ``kind`` is ``scalar`` (tensor of shape ``(rows,)``), ``list`` (``(rows, width)``, the width learnt from the data)
    or ``bytes`` (``(rows,)`` of ``tf.string``); ``dtype`` is NumPy's name of the element type, ``bytes`` for bytes.
    """

    name: str
    kind: str
    dtype: str


@dataclass(frozen=True)
class FeedPlan:
    """The columns a feed carries, in order: the features, then the label where there is one."""

    columns: tuple[Column, ...]
    label: str | None = None

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def features(self) -> list[str]:
        return [name for name in self.names if name != self.label]

    @property
    def schema(self) -> str:
        """The planned Arrow schema as base64 of its IPC form; list columns have no width yet."""
        return encode_schema(pa.schema([_field(column) for column in self.columns]))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> FeedPlan:
        fields = json.loads(text)
        return cls(tuple(Column(**column) for column in fields["columns"]), fields["label"])


def plan_feed(schema: Any, features: Sequence[str] | None = None, label: str | None = None) -> FeedPlan:
    """Plan a feed from a Spark ``StructType`` (of a classic or a Connect session alike).

    ``features`` of ``None`` means every column but the label. Numbers and booleans, arrays of them, strings and binary
    become tensors. Raises :class:`DataError` for an unknown, repeated, unsupported or contradictory column.
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
    return FeedPlan(tuple(_column(name, types, "label" if name == label else "column") for name in names), label)


def encode_schema(schema: pa.Schema) -> str:
    """Give an Arrow schema as base64 of its IPC form."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def decode_schema(text: str) -> pa.Schema:
    """Read what :func:`encode_schema` gave."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def element_type(dtype: str) -> pa.DataType:
    """Arrow type in which elements of ``dtype`` travel; booleans take a byte each, as they do in tensors."""
    return pa.uint8() if dtype == "bool" else pa.from_numpy_dtype(dtype)


def _field(column: Column) -> pa.Field:
    if column.kind == BYTES:
        kind = pa.binary()
    elif column.kind == LIST:
        kind = pa.list_(element_type(column.dtype))
    else:
        kind = element_type(column.dtype)
    return pa.field(column.name, kind, nullable=False, metadata={DTYPE_KEY: column.dtype.encode()})


def _column(name: str, types: dict[str, Any], role: str) -> Column:
    if name not in types:
        raise DataError(f"the DataFrame has no {role} {name!r}: {suggestion(name, list(types))}")
    spark_type = types[name]
    kind = spark_type.typeName()
    if kind in NUMBERS:
        return Column(name, SCALAR, NUMBERS[kind])
    if kind in TEXT:
        return Column(name, BYTES, "bytes")
    if kind == "array" and (element := spark_type.elementType.typeName()) in NUMBERS:
        return Column(name, LIST, NUMBERS[element])
    raise DataError(
        f"{role} {name!r} of type {spark_type.simpleString()} cannot become a tensor: {_remedy(name, kind)}"
    )


def _remedy(name: str, kind: str) -> str:
    known = _REMEDIES.get(kind, "turn it into numbers, an array of numbers, a string or binary")
    if kind == "array":
        known = "only arrays of numbers do; flatten nested ones with F.flatten({name!r})"
    return known.format(name=name) + ", or name only other columns as features"


def suggestion(name: str, known: list[str]) -> str:
    """What to say of a name that is not among ``known``: the nearest one, or all there are."""
    folded = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return f"did you mean {folded[near[0]]!r}?" if near else f"it has {', '.join(map(repr, known)) or 'no columns'}"


def _refuse_twins(names: list[str]) -> None:
    twins = [name for name, count in Counter(names).items() if count > 1]
    if twins:
        raise DataError(f"column {twins[0]!r} is named twice: rename or drop one, names of tensors are unique")
