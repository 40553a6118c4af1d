"""From the records of a block to Arrow columns of a given schema."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tfos_magic.errors import DataError
from tfos_magic.tfrecord import features
from tfos_magic.tfrecord.features import BYTES, CONTEXT, EMPTY, FEATURE_LISTS, FLOAT, INT64, KINDS, Spans, Values
from tfos_magic.tfrecord.protobuf_wire import Block, Offsets, gather

EXAMPLE, SEQUENCE, BYTE_ARRAY = "Example", "SequenceExample", "ByteArray"
RECORD_TYPES = (EXAMPLE, SEQUENCE, BYTE_ARRAY)
Counts = npt.NDArray[np.int64]


def decode(block: Block, starts: Offsets, ends: Offsets, schema: pa.Schema, record_type: str) -> pa.RecordBatch:
    """Give the records at ``starts`` to ``ends`` as a batch of ``schema``, which :func:`refuse_types` has let through.

    A feature that a record lacks is null. Raises ``Malformed`` for bytes that are no such message, and
    :class:`DataError` for a feature that is not what the schema says.
    """
    if record_type == BYTE_ARRAY:
        return pa.record_batch([gather(block, starts, ends).cast(schema.types[0])], schema=schema)
    lists = [field.name for field in schema if depth(field.type) == 2]
    single = [field.name for field in schema if depth(field.type) < 2]
    spans = _spans(block, starts, ends, CONTEXT, single)
    if record_type == SEQUENCE:
        spans |= _spans(block, starts, ends, FEATURE_LISTS, lists)
    arrays = [_array(block, spans[field.name], field) for field in schema]
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(starts), pa.struct([])))
    return pa.record_batch(arrays, schema=schema)


def depth(kind: pa.DataType) -> int:
    """How many levels of arrays a column has."""
    return 1 + depth(kind.value_type) if pa.types.is_list(kind) else 0


def element(kind: pa.DataType) -> pa.DataType:
    """The type inside all levels of arrays."""
    return element(kind.value_type) if pa.types.is_list(kind) else kind


def kind_for(kind: pa.DataType) -> int:
    """The kind of feature that holds elements of this Arrow type, or ``EMPTY`` for none."""
    if pa.types.is_signed_integer(kind) or pa.types.is_boolean(kind):
        return INT64
    if kind in (pa.float32(), pa.float64()):
        return FLOAT
    return BYTES if pa.types.is_string(kind) or pa.types.is_binary(kind) else EMPTY


def refuse_types(schema: pa.Schema, record_type: str) -> None:
    """Raise :class:`DataError`, naming the column and what to do, for a type that no record of this type can hold."""
    if record_type == BYTE_ARRAY:
        if len(schema) != 1 or kind_for(schema.types[0]) != BYTES:
            raise DataError("records of type ByteArray have one column, of type binary: select or cast that one")
        return
    for field in schema:
        if kind_for(element(field.type)) == EMPTY:
            raise DataError(f"column {field.name!r} is {field.type}, which TFRecord cannot hold: {_remedy(field)}")
        if depth(field.type) > (2 if record_type == SEQUENCE else 1):
            raise DataError(
                f"column {field.name!r} has arrays in arrays: "
                + ("flatten the innermost" if record_type == SEQUENCE else "set recordType to SequenceExample, or")
                + f" with F.flatten({field.name!r})"
            )


def _remedy(field: pa.Field) -> str:
    kind, name = element(field.type), field.name
    if pa.types.is_decimal(kind):
        return f"cast it, for example F.col({name!r}).cast('double'), or to string to keep every digit"
    if pa.types.is_temporal(kind):
        return f"turn it into a number, for example F.unix_timestamp({name!r}) or F.unix_date({name!r})"
    if pa.types.is_struct(kind):
        return f"select its fields, for example '{name}.*', or F.to_json({name!r})"
    if pa.types.is_map(kind):
        return f"select F.map_keys({name!r}) and F.map_values({name!r}), or F.to_json({name!r})"
    return "leave it out, or cast it to a number, string, binary or an array of these"


def _spans(block: Block, starts: Offsets, ends: Offsets, field: int, names: list[str]) -> dict[str, Spans]:
    if not names:
        return {}
    map_entries = features.entries(block, starts, ends, field)
    places = features.places_of(map_entries, names)
    return {name: map_entries.of(at, len(starts)) for name, at in zip(names, places, strict=True)}


def _array(block: Block, spans: Spans, field: pa.Field) -> pa.Array:
    try:
        levels = depth(field.type)
        if levels == 2:
            array = _nested(block, spans, field)
        else:
            counts, flat = _checked(features.values_of(block, spans), field)
            array = (_listed if levels else _scalars)(_spread(counts, spans.present), flat, field)
    except features.MixedKinds as error:
        raise DataError(
            f"feature {field.name!r} is of several kinds ({', '.join(error.args[0])}) in one file: give a schema "
            "without it"
        ) from None
    except pa.ArrowInvalid as error:
        raise DataError(
            f"values of feature {field.name!r} do not fit {field.type}: {error}. Read it as bigint, or as binary where "
            "it is a string"
        ) from None
    if array.null_count and not field.nullable:
        raise DataError(f"feature {field.name!r} is missing in some records: make the column nullable in the schema")
    return array


def _checked(values: Values, field: pa.Field) -> tuple[Counts, pa.Array]:
    """The values in the column's element type."""
    kind, target_type = values.kind, element(field.type)
    if kind == EMPTY:
        return values.counts, pa.array([], target_type)
    if kind != kind_for(target_type):
        raise DataError(
            f"feature {field.name!r} holds {KINDS[kind]} values, and the schema says {field.type}: read it as an array "
            "of, or a single, " + {BYTES: "string or binary", FLOAT: "float", INT64: "bigint"}[kind]
        )
    if pa.types.is_boolean(target_type):
        return values.counts, pc.not_equal(values.flat, 0)
    return values.counts, values.flat.cast(target_type)


def _spread(counts: Counts, present: npt.NDArray[np.bool_]) -> Counts:
    """Counts for every record, -1 for those without the feature."""
    if len(counts) == len(present):
        return counts
    every = np.full(len(present), -1, np.int64)
    every[present] = counts
    return every


def _scalars(counts: Counts, flat: pa.Array, field: pa.Field) -> pa.Array:
    most = int(counts.max(initial=0))
    if most > 1:
        raise DataError(f"feature {field.name!r} has {most} values in a record: make it an array in the schema")
    if len(flat) == len(counts):
        return flat
    there = counts > 0
    return flat.take(pa.array(np.cumsum(there) - 1, pa.int64(), mask=~there))


def _listed(counts: Counts, flat: pa.Array, field: pa.Field) -> pa.Array:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(np.maximum(counts, 0), out=offsets[1:])
    missing = counts < 0
    mask = pa.array(missing) if missing.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets), flat, type=field.type, mask=mask)


def _nested(block: Block, spans: Spans, field: pa.Field) -> pa.Array:
    steps, inner = features.feature_lists(block, spans)
    counts, flat = _checked(features.values_of(block, inner), field)
    lists = _listed(np.maximum(counts, 0), flat, field.type.value_field)
    return _listed(_spread(steps, spans.present), lists, field)
