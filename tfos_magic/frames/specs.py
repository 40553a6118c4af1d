"""What a column is to a tensor function: element type, shape of one cell, and how Spark stores it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tfos_magic.columns.schema_plan import NUMBERS, TEXT
from tfos_magic.errors import DataError

METADATA = "tfos"
BYTES = "bytes"

# Spark has neither half precision nor unsigned integers: values go into the next wider type that holds them all.
_WIDENED = {
    "float16": "float32",
    "bfloat16": "float32",
    "uint8": "int16",
    "uint16": "int32",
    "uint32": "int64",
}
_REMEDIES = {
    "decimal": "cast it, for example F.col({name!r}).cast('double')",
    "date": "turn it into a number, for example F.unix_date({name!r})",
    "timestamp": "turn it into a number, for example F.unix_timestamp({name!r})",
    "struct": "select its fields, for example '{name}.*'",
    "map": "turn it into an array, for example F.map_values({name!r})",
}

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class ColumnSpec:
    """One column as a tensor function sees it.

    ``dtype`` is NumPy's name of the element type, ``bytes`` for strings and binary. ``shape`` is that of one cell:
    empty for a scalar, None for a length that may differ or is not known. ``vector`` marks Spark ML's vectors, ``text``
    tells strings from binary.
    """

    name: str
    dtype: str
    shape: Shape = ()
    vector: bool = False
    text: bool = False

    @property
    def is_static(self) -> bool:
        """True when all lengths are known."""
        return None not in self.shape

    @property
    def stored(self) -> str:
        """NumPy's name of the type in which Spark holds the elements."""
        return _WIDENED.get(self.dtype, self.dtype)

    def describe(self, rows: bool = True) -> str:
        """Type and shape as people read them, such as ``float64[?,784]``; ``?`` is an unknown number."""
        lengths = ["?"] * rows + ["?" if length is None else str(length) for length in self.shape]
        return f"{self.element_name}[{','.join(lengths)}]"

    @property
    def element_name(self) -> str:
        if self.dtype != BYTES:
            return self.dtype
        return "string" if self.text else "binary"

    def metadata(self) -> dict[str, Any]:
        """What the column's metadata says of it; an unknown length is -1."""
        return {METADATA: {"shape": [-1 if n is None else n for n in self.shape], "dtype": self.dtype}}


def spec_of_field(field: Any) -> ColumnSpec:
    """The spec of a Spark ``StructField``; shapes that :func:`analyze` or a map wrote into its metadata are used.

    Raises :class:`DataError` for a type that cannot become a tensor.
    """
    depth, element = _unnest(field.dataType)
    kind = element.typeName()
    noted = (field.metadata or {}).get(METADATA, {})
    if kind == "vectorudt" and depth == 0:
        return ColumnSpec(field.name, "float64", _noted_shape(noted, 1), vector=True)
    if kind in TEXT:
        return ColumnSpec(field.name, BYTES, _noted_shape(noted, depth), text=kind != "binary")
    if kind in NUMBERS:
        dtype = NUMBERS[kind]
        if _WIDENED.get(str(noted.get("dtype"))) == dtype and noted["dtype"] != "bfloat16":
            dtype = str(noted["dtype"])
        return ColumnSpec(field.name, dtype, _noted_shape(noted, depth))
    remedy = _REMEDIES.get(kind, "turn it into numbers, strings, binary or arrays of them").format(name=field.name)
    raise DataError(f"column {field.name!r} of type {field.dataType.simpleString()} cannot become a tensor: {remedy}")


def spec_of_arrow(field: pa.Field) -> ColumnSpec:
    """The spec of an Arrow field, for pandas DataFrames. Raises :class:`DataError` for unsupported types."""
    depth, kind = 0, field.type
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        depth, kind = depth + 1, kind.value_type
    shape: Shape = (None,) * depth
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ColumnSpec(field.name, BYTES, shape, text=True)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return ColumnSpec(field.name, BYTES, shape)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return ColumnSpec(field.name, np.dtype(kind.to_pandas_dtype()).name, shape)
    raise DataError(f"column {field.name!r} of type {field.type} cannot become a tensor: turn it into numbers or text")


def field_of_spec(spec: ColumnSpec) -> Any:
    """The Spark ``StructField`` that holds such a column, its shape in the metadata."""
    from pyspark.sql import types

    if spec.dtype == BYTES:
        kind: Any = types.StringType() if spec.text else types.BinaryType()
    else:
        kind = _spark_number(spec)
    for _ in spec.shape:
        kind = types.ArrayType(kind)
    return types.StructField(spec.name, kind, True, spec.metadata())


def arrow_type(spec: ColumnSpec) -> pa.DataType:
    """The Arrow type of one element."""
    if spec.dtype == BYTES:
        return pa.string() if spec.text else pa.binary()
    return pa.bool_() if spec.dtype == "bool" else pa.from_numpy_dtype(spec.stored)


def shapes_fit(one: Sequence[int | None], other: Sequence[int | None]) -> bool:
    """True when a cell can have both shapes."""
    return len(one) == len(other) and all(a == b or a is None or b is None for a, b in zip(one, other, strict=True))


def _unnest(kind: Any) -> tuple[int, Any]:
    depth = 0
    while kind.typeName() == "array":
        depth, kind = depth + 1, kind.elementType
    return depth, kind


def _noted_shape(noted: Mapping[str, Any], depth: int) -> Shape:
    lengths = noted.get("shape", ())
    if len(lengths) != depth:
        return (None,) * depth
    return tuple(None if length < 0 else int(length) for length in lengths)


def _spark_number(spec: ColumnSpec) -> Any:
    from pyspark.sql import types

    kinds: dict[str, Any] = {
        "bool": types.BooleanType,
        "int8": types.ByteType,
        "int16": types.ShortType,
        "int32": types.IntegerType,
        "int64": types.LongType,
        "float32": types.FloatType,
        "float64": types.DoubleType,
    }
    if spec.stored not in kinds:
        raise DataError(f"output {spec.name!r} is {spec.dtype}, which Spark cannot hold: tf.cast it in the function")
    return kinds[spec.stored]()
