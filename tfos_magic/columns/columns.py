"""The columns of a feed: what is known of each, and how it travels."""

from __future__ import annotations

import base64
import dataclasses
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

SCALAR, LIST, BYTES, STRUCT, VECTOR = "scalar", "list", "bytes", "struct", "vector"
COLUMN_KEY = b"tfos.column"


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
    """The columns a feed carries, in order: the features, then the ``targets``: label and weight, as far as there."""

    columns: tuple[Column, ...]
    targets: tuple[str, ...] = ()

    @property
    def sources(self) -> list[str]:
        """The DataFrame's columns to read."""
        return [column.name for column in self.columns]

    @property
    def names(self) -> list[str]:
        """The names of the tensors: of the columns, and of the masks that some bring along."""
        return [column.name for column in self.carried]

    @property
    def features(self) -> list[str]:
        return [name for name in self.names if name not in self.targets]

    @property
    def schema(self) -> str:
        """The Arrow schema of every batch of the feed, as base64 of its IPC form; shapes of lists are not known yet."""
        return encode_schema(pa.schema([column_field(column) for column in self.carried]))

    @property
    def carried(self) -> list[Column]:
        """The columns with the masks that some bring along."""
        return [wire for column in self.columns for wire in ([column, column.mask] if column.masked else [column])]


def encode_schema(schema: pa.Schema) -> str:
    """Give an Arrow schema as base64 of its IPC form."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def decode_schema(text: str) -> pa.Schema:
    """Read what :func:`encode_schema` gave."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def column_field(column: Column) -> pa.Field:
    """The field of a wire schema that carries ``column``, and all that is known of it."""
    told = dataclasses.asdict(column)
    known = {key: value for key, value in told.items() if key == "name" or value not in (None, "", (), False)}
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
