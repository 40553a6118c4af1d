"""What a column is to a tensor function: element type, shape of one cell, and how Spark stores it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tfos_magic.columns.columns import BYTES, STRUCT, VECTOR, Column
from tfos_magic.columns.file_types import column_of_arrow
from tfos_magic.columns.schema_plan import column_of
from tfos_magic.errors import DataError

METADATA = "tfos"

# Spark has neither half precision nor unsigned integers: values go into the next wider type that holds them all.
_WIDENED = {
    "float16": "float32",
    "bfloat16": "float32",
    "uint8": "int16",
    "uint16": "int32",
    "uint32": "int64",
}
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class ColumnSpec:
    """One column as a tensor function sees it.

    ``dtype`` is NumPy's name of the element type, ``bytes`` for strings and binary. ``shape`` is that of one cell:
    empty for a scalar, None for a length that may differ or is not known. ``vector`` marks Spark ML's vectors, ``text``
    tells strings from binary. ``of_time`` marks numbers that are dates or times in the DataFrame.
    """

    name: str
    dtype: str
    shape: Shape = ()
    vector: bool = False
    text: bool = False
    of_time: bool = False

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
    noted = (field.metadata or {}).get(METADATA, {})
    spec = _spec(column_of(field.name, field.dataType), _innermost(field.dataType).typeName() != "binary")
    narrow = str(noted.get("dtype"))
    dtype = narrow if _WIDENED.get(narrow) == spec.dtype and narrow != "bfloat16" else spec.dtype
    return replace(spec, dtype=dtype, shape=_noted_shape(noted, len(spec.shape)))


def spec_of_arrow(field: pa.Field) -> ColumnSpec:
    """The spec of an Arrow field, for pandas DataFrames. Raises :class:`DataError` for unsupported types."""
    kind = field.type
    while hasattr(kind, "value_type"):  # of lists, and of dictionaries
        kind = kind.value_type
    return _spec(column_of_arrow(field.name, field.type), "string" in str(kind))


def _spec(column: Column, text: bool) -> ColumnSpec:
    if column.kind == STRUCT:
        raise DataError(f"column {column.name!r} is a struct: select its fields, for example '{column.name}.*'")
    depth, text = column.depth if column.is_list else 0, text and column.dtype == BYTES
    return ColumnSpec(column.name, column.dtype, (None,) * depth, column.kind == VECTOR, text, bool(column.unit))


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


def _innermost(kind: Any) -> Any:
    while kind.typeName() == "array":
        kind = kind.elementType
    return kind


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
