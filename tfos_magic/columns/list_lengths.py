"""How long the lists of a feed are: seen batch by batch, settled once all rows are known."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tfos_magic.columns.columns import STRUCT, Column, column_field, field_column
from tfos_magic.errors import DataError

Path = tuple[str, ...]
Range = tuple[int, int]
"""The least and the greatest length seen; the least is above the greatest where none was."""

NONE_SEEN: Range = (1 << 62, -1)


@dataclass(frozen=True)
class ListLengths:
    """The lengths of lists seen so far: by the path of a column, a range for each level."""

    seen: Mapping[Path, tuple[Range, ...]] = field(default_factory=dict)

    def merge(self, other: ListLengths) -> ListLengths:
        """Give what both have seen."""
        merged = dict(self.seen)
        for path, ranges in other.seen.items():
            known = merged.get(path, (NONE_SEEN,) * len(ranges))
            merged[path] = tuple(
                (min(one[0], two[0]), max(one[1], two[1])) for one, two in zip(known, ranges, strict=True)
            )
        return ListLengths(merged)

    def to_json(self) -> str:
        return json.dumps([[path, ranges] for path, ranges in self.seen.items()])

    @classmethod
    def from_json(cls, text: str) -> ListLengths:
        return cls({tuple(path): tuple(map(tuple, ranges)) for path, ranges in json.loads(text)})


def lengths_seen(array: pa.Array) -> Range:
    """The range of the lengths of lists that are not null."""
    extremes = pc.min_max(pc.list_value_length(array)).as_py()
    return NONE_SEEN if extremes["min"] is None else (extremes["min"], extremes["max"])


def settle(schema: pa.Schema, widths: ListLengths) -> pa.Schema:
    """Give a wire schema that says of every list whether it is of one length, padded or ragged.

    Lists whose length never differs become dense tensors, others :class:`tf.RaggedTensor`, or dense ones as long as the
    longest where they are padded. Raises :class:`DataError` for lists that are all empty, and for one that is longer
    than padding allows.
    """
    fields = [column_field(_settled(field_column(each), (each.name,), widths)) for each in schema]
    return pa.schema(fields, metadata=schema.metadata)


def check_widths(schema: pa.Schema, widths: ListLengths) -> None:
    """Raise :class:`DataError` where lists have been seen that do not have the lengths of a settled ``schema``."""
    for each in schema:
        _check(field_column(each), (each.name,), widths)


def _settled(column: Column, path: Path, widths: ListLengths) -> Column:
    if column.kind == STRUCT:
        fields = tuple(_settled(each, (*path, each.name), widths) for each in column.fields)
        return dataclasses.replace(column, fields=fields)
    if not column.is_list:
        return column
    ranges = widths.seen.get(path, (NONE_SEEN,) * column.depth)
    levels = [_width(column, ".".join(path), level, seen) for level, seen in enumerate(ranges)]
    return dataclasses.replace(column, shape=tuple(levels))


def _width(column: Column, name: str, level: int, seen: Range) -> int | None:
    least, most = seen
    if column.pad_to:
        if most > column.pad_to[level]:
            raise too_long(column, name, level, most)
        return column.pad_to[level]
    if most < 1:
        kind = "empty arrays" if most == 0 else "null arrays"
        raise DataError(
            f"column {name!r} has nothing but {kind}{' inside its arrays' if level else ''}: leave the column out"
        )
    return most if least == most or column.pad is not None else None


def _check(column: Column, path: Path, widths: ListLengths) -> None:
    for each in column.fields:
        _check(each, (*path, each.name), widths)
    for level, (least, most) in enumerate(widths.seen.get(path, ())):
        width = column.shape[level] if column.shape else None
        if width is None or most < 0:
            continue
        padded = column.pad is not None
        if padded and most > width:
            raise too_long(column, ".".join(path), level, most)
        if not padded and (least, most) != (width, width):
            raise DataError(
                f"column {'.'.join(path)!r} has arrays of {least if least != width else most} values, and the first "
                f"rows had {width}: say how long they get at most and what fills them up, with --pad "
                f"{'.'.join(path)}=0:LENGTH"
            )


def too_long(column: Column, name: str, level: int, most: int) -> DataError:
    """The error for lists that are longer than they are padded to."""
    room = (column.shape or column.pad_to)[level]
    return DataError(
        f"column {name!r} has an array of {most} values, and --pad makes them {room} long: pad to {most} or more, or "
        f"cut them first, for example with F.slice({name!r}, 1, {room})"
    )
