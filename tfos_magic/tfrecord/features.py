"""The features of many ``tf.train.Example`` or ``SequenceExample`` records, as ranges of the block they lie in.

The messages are those of ``tensorflow/core/example/example.proto`` and ``feature.proto``::

    Example         { Features features = 1; }
    SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
    Features        { map<string, Feature> feature = 1; }
    FeatureLists    { map<string, FeatureList> feature_list = 1; }
    FeatureList     { repeated Feature feature = 1; }
    Feature         { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }

and each of the lists has one repeated field, ``value = 1``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tfos_magic.tfrecord.protobuf_wire import (
    FIXED32,
    LENGTH,
    VARINT,
    Block,
    Fields,
    Malformed,
    Offsets,
    content,
    gather,
    unpack_varints,
    walk,
    walk_pairs,
)

EMPTY, BYTES, FLOAT, INT64 = 0, 1, 2, 3
KINDS = {BYTES: "bytes", FLOAT: "float", INT64: "int64"}
CONTEXT, FEATURE_LISTS = 1, 2
ARROW = {BYTES: pa.binary(), FLOAT: pa.float32(), INT64: pa.int64()}


@dataclass(frozen=True)
class Entries:
    """Entries of the maps of many records: the record, the key, and where the value lies. Later ones win."""

    record: Offsets
    key: pa.Array
    start: Offsets
    end: Offsets

    def of(self, places: Offsets, records: int) -> Spans:
        """The values of the entries at ``places``, which all have one key: one span for each record."""
        last_places = np.full(records, -1, np.int64)
        last_places[self.record[places]] = places
        present = last_places >= 0
        return Spans(present, self.start[last_places[present]], self.end[last_places[present]])


@dataclass(frozen=True)
class Spans:
    """Where a feature lies: ``present`` for each record, ``start`` and ``end`` for those that have it."""

    present: npt.NDArray[np.bool_]
    start: Offsets
    end: Offsets


@dataclass(frozen=True)
class Values:
    """The values of many features: their kind, how many each has (-1 where it has no list at all), and all of them."""

    kind: int
    counts: npt.NDArray[np.int64]
    flat: pa.Array


def entries(block: Block, starts: Offsets, ends: Offsets, field: int = CONTEXT) -> Entries:
    """Read the keys of the maps in this ``field`` of many records; the values are not read."""
    maps = walk(block, starts, ends).only(field, LENGTH)
    pairs = walk(block, maps.start, maps.end).only(1, LENGTH)
    key_start, key_end, start, end = walk_pairs(block, pairs.start, pairs.end) or _key_values(block, pairs)
    return Entries(maps.message[pairs.message], gather(block, key_start, key_end), start, end)


def _key_values(block: Block, pairs: Fields) -> tuple[Offsets, Offsets, Offsets, Offsets]:
    parts = walk(block, pairs.start, pairs.end)
    keys, values = parts.only(1, LENGTH), parts.only(2, LENGTH)
    return *_last_spans(keys, pairs), *_last_spans(values, pairs)


def _last_spans(parts: Fields, messages: Fields) -> tuple[Offsets, Offsets]:
    """The last field of each message; of messages without one, nothing at their end."""
    last = parts.last(len(messages.start))
    missing = last < 0
    if not missing.any():
        return parts.start[last], parts.end[last]
    start, end = messages.end.copy(), messages.end.copy()
    start[~missing], end[~missing] = parts.start[last[~missing]], parts.end[last[~missing]]
    return start, end


def values_of(block: Block, spans: Spans) -> Values:
    """Read the values of ``Feature`` messages. Raises :class:`MixedKinds` when they are of several kinds."""
    fields = walk(block, spans.start, spans.end)
    last = fields.last(len(spans.start))
    number = fields.number[last] if len(fields.number) else last
    known = (last >= 0) & (number >= BYTES) & (number <= INT64)
    kinds = number[known]
    if len(kinds) and kinds.min() != kinds.max():
        raise MixedKinds(sorted(KINDS[int(kind)] for kind in np.unique(kinds)))
    counts = np.full(len(spans.start), -1, np.int64)
    if not len(kinds):
        return Values(EMPTY, counts, pa.nulls(0))
    chosen = last[known]
    if (fields.wire[chosen] != LENGTH).any():
        raise Malformed("a feature's list has an unexpected wire type")
    kind = int(kinds[0])
    counts[known], flat = _READERS[kind](block, fields.start[chosen], fields.end[chosen])
    return Values(kind, counts, flat)


def feature_lists(block: Block, spans: Spans) -> tuple[npt.NDArray[np.int64], Spans]:
    """Read ``FeatureList`` messages: how many features each has, and where these lie."""
    fields = walk(block, spans.start, spans.end).only(1, LENGTH)
    counts = np.bincount(fields.message, minlength=len(spans.start)).astype(np.int64)
    return counts, Spans(np.ones(len(fields.start), np.bool_), fields.start, fields.end)


class MixedKinds(Exception):
    """A feature is of another kind in some records than in others; ``args[0]`` lists the kinds."""


def _bytes(block: Block, starts: Offsets, ends: Offsets) -> tuple[npt.NDArray[np.int64], pa.Array]:
    fields = walk(block, starts, ends).only(1, LENGTH)
    return np.bincount(fields.message, minlength=len(starts)), gather(block, fields.start, fields.end)


def _floats(block: Block, starts: Offsets, ends: Offsets) -> tuple[npt.NDArray[np.int64], pa.Array]:
    fields = walk(block, starts, ends).only(1, LENGTH, FIXED32)
    sizes = fields.end - fields.start
    if (sizes % 4).any():
        raise Malformed("a list of floats ends within a number")
    packed = content(gather(block, fields.start, fields.end))
    return _summed(fields.message, sizes // 4, len(starts)), pa.array(packed.view("<f4"))


def _int64s(block: Block, starts: Offsets, ends: Offsets) -> tuple[npt.NDArray[np.int64], pa.Array]:
    fields = walk(block, starts, ends).only(1, LENGTH, VARINT)
    sizes = fields.end - fields.start
    packed = content(gather(block, fields.start, fields.end))
    numbers, last = unpack_varints(packed)
    over = np.cumsum(sizes)
    if not last[over[sizes > 0] - 1].all():
        raise Malformed("a list of integers ends within a number")
    before = np.concatenate([[0], np.cumsum(last)])
    return _summed(fields.message, before[over] - before[over - sizes], len(starts)), pa.array(numbers)


def _summed(message: Offsets, counts: npt.NDArray[np.int64], messages: int) -> npt.NDArray[np.int64]:
    """How many values each message has over all its fields: numbers may come in several packed fields or one by one."""
    if len(message) == messages and (message == np.arange(messages)).all():
        return counts
    return np.bincount(message, weights=counts, minlength=messages).astype(np.int64)


_READERS = {BYTES: _bytes, FLOAT: _floats, INT64: _int64s}


def places_of(map_entries: Entries, names: list[str]) -> list[Offsets]:
    """For each name, which entries have it as their key."""
    index = pc.index_in(map_entries.key, value_set=pa.array([name.encode() for name in names], pa.binary()))
    index = pc.fill_null(index, -1).to_numpy(zero_copy_only=False)
    return [np.flatnonzero(index == number) for number in range(len(names))]
