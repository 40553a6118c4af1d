"""From Arrow columns to the bytes of records: heads of all rows first, then one join of heads and payloads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tfos_magic.errors import DataError
from tfos_magic.tfrecord.decode import BYTE_ARRAY, EXAMPLE, depth, element, kind_for
from tfos_magic.tfrecord.features import BYTES, FLOAT, INT64
from tfos_magic.tfrecord.protobuf_wire import Head, binaries, no_head, pack_varints, sizes_of

_ONE, _TWO = b"\x0a", b"\x12"
_KIND_TAGS = {BYTES: b"\x0a", FLOAT: b"\x12", INT64: b"\x1a"}
_PIECE_BYTES = 32 << 20
Counts = npt.NDArray[np.int64]


def encode(batch: pa.RecordBatch, record_type: str) -> pa.Array:
    """Give each row of a batch, whose types ``refuse_types`` has let through, as the bytes of one record.

    A null is a feature left out. Doubles become floats, for no record has doubles; booleans become 0 and 1. Raises
    :class:`DataError` for nulls within arrays.
    """
    if record_type == BYTE_ARRAY:
        return _bytes_of_rows(batch)
    columns = [(field, batch.column(field.name)) for field in batch.schema]
    if record_type == EXAMPLE:
        maps = [_map([(field.name, *_feature(array, field)) for field, array in columns], batch.num_rows, _ONE)]
    else:
        lists = [(f.name, *_feature_list(array, f)) for f, array in columns if depth(f.type) == 2]
        context = [(f.name, *_feature(array, f)) for f, array in columns if depth(f.type) < 2]
        maps = [_map(context, batch.num_rows, _ONE), _map(lists, batch.num_rows, _TWO)]
    return _join([piece for pieces in maps for piece in pieces])


def pieces_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in pieces of a size that is joined at once."""
    rows = max(1, batch.num_rows * _PIECE_BYTES // max(1, batch.nbytes))
    for at in range(0, batch.num_rows, rows):
        yield batch.slice(at, rows)


def _bytes_of_rows(batch: pa.RecordBatch) -> pa.Array:
    rows = batch.column(0).cast(pa.binary())
    if rows.null_count:
        raise DataError(f"column {batch.schema.names[0]!r} has nulls, and a record of bytes cannot be null: drop them")
    return rows


def _map(parts: list[tuple[str, pa.Array | None, Head, pa.Array]], rows: int, tag: bytes) -> list[pa.Array]:
    """The pieces of a map field: its own head, then heads and payloads of its entries."""
    pieces, size = [], np.zeros(rows, np.int64)
    for name, present, head, payload in parts:
        key = name.encode()
        width = pack_varints(np.array([len(key)], np.uint64))[0].tobytes()
        entry = head.wrapped(_TWO).after(_ONE + width + key).wrapped(_ONE)
        if present is not None:
            entry = Head(pc.if_else(present, entry.bytes, b""), np.where(np.asarray(present), entry.size, 0))
        pieces += [entry.bytes, payload]
        size += entry.size
    return [no_head(size).wrapped(tag).bytes, *pieces]


def _feature(array: pa.Array, field: pa.Field) -> tuple[pa.Array | None, Head, pa.Array]:
    """Which rows have the feature (None for all), and heads and payloads of ``Feature`` messages."""
    present = array.is_valid() if array.null_count else None
    if depth(field.type):
        values = array.flatten()
        counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        if values.null_count:
            raise DataError(
                f"column {field.name!r} has nulls inside its arrays, which no record can hold: drop them with "
                f"F.array_compact({field.name!r})"
            )
    else:
        values = array.drop_null()
        counts = np.ones(len(array), np.int64) if present is None else np.asarray(present).astype(np.int64)
    kind = kind_for(element(field.type))
    payload = _WRITERS[kind](values, counts)
    head = no_head(sizes_of(payload))
    if kind != BYTES:
        head = head.wrapped(_ONE)
    return present, head.wrapped(_KIND_TAGS[kind]), payload


def _feature_list(array: pa.Array, field: pa.Field) -> tuple[pa.Array | None, Head, pa.Array]:
    """As :func:`_feature`, for the ``FeatureList`` messages of arrays of arrays."""
    present = array.is_valid() if array.null_count else None
    steps = array.flatten()
    if steps.null_count:
        raise DataError(f"column {field.name!r} has null arrays inside its arrays: drop them with F.array_compact")
    counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    _, head, payload = _feature(steps, pa.field(field.name, field.type.value_type))
    payload = _grouped(_join([head.wrapped(_ONE).bytes, payload]), counts)
    return present, no_head(sizes_of(payload)), payload


def _packed_ints(values: pa.Array, counts: Counts) -> pa.Array:
    numbers = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
    packed, widths = pack_varints(numbers.view(np.uint64))
    return _grouped(binaries(packed, widths), counts)


def _packed_floats(values: pa.Array, counts: Counts) -> pa.Array:
    numbers = values.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    return binaries(np.ascontiguousarray(numbers).view(np.uint8), counts * 4)


def _byte_values(values: pa.Array, counts: Counts) -> pa.Array:
    content = values.cast(pa.binary())
    return _grouped(_join([no_head(sizes_of(content)).wrapped(_ONE).bytes, content]), counts)


_WRITERS = {INT64: _packed_ints, FLOAT: _packed_floats, BYTES: _byte_values}


def _grouped(flat: pa.Array, counts: Counts) -> pa.Array:
    """Make one element of the next ``counts[i]`` elements; not a byte is copied."""
    if len(flat) == len(counts) and (counts == 1).all():
        return flat
    ends = np.zeros(1, np.int32)
    if len(flat):
        ends = np.frombuffer(flat.buffers()[1], np.int32, len(flat) + 1, flat.offset * 4)
    offsets = ends[np.concatenate([[0], np.cumsum(counts)])]
    return pa.BinaryArray.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(offsets), flat.buffers()[2]])


def _join(pieces: list[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, b"")
