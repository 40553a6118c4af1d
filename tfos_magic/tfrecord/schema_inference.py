"""A schema from the heads of files: all records of the sample count, not only the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_magic.errors import DataError
from tfos_magic.tfrecord import features
from tfos_magic.tfrecord.decode import BYTE_ARRAY, SEQUENCE
from tfos_magic.tfrecord.features import ARROW, BYTES, CONTEXT, EMPTY, FEATURE_LISTS, KINDS
from tfos_magic.tfrecord.protobuf_wire import Block, Malformed
from tfos_magic.tfrecord.reading import ReadOptions
from tfos_magic.tfrecord.record_files import Corrupt, RecordChunk, chunks

_HEAD_BYTES = 1 << 20
_OPENERS = 8


@dataclass(frozen=True)
class FeatureSeen:
    """What was seen of a feature: its kind, the field it came in, whether each record had one value, and only text."""

    kind: int
    field: int
    single: bool
    text: bool

    def and_also(self, other: FeatureSeen, name: str) -> FeatureSeen:
        """What was seen in both. Raises :class:`DataError` when they contradict each other."""
        if self.field != other.field:
            raise DataError(f"{name!r} is a feature in some records and a feature list in others: give a schema")
        if EMPTY not in (self.kind, other.kind) and self.kind != other.kind:
            raise DataError(
                f"feature {name!r} holds {KINDS[self.kind]} values in some records and {KINDS[other.kind]} in others: "
                "give a schema without it, or read these files by themselves"
            )
        kind = self.kind if self.kind != EMPTY else other.kind
        return replace(self, kind=kind, single=self.single and other.single, text=self.text and other.text)


def infer(urls: Sequence[str], options: ReadOptions, sample: int, binary: bool = False) -> pa.Schema:
    """Work a schema out from the first ``sample`` records of each file; every column is nullable.

    int64 becomes bigint, float float, bytes string where all of the sample is UTF-8 (never, with ``binary``): a single
    value where each record that has the feature has one value, else an array; feature lists are arrays of arrays.
    Raises :class:`DataError` where the records contradict each other, where there is none, and for corrupt ones.
    """
    if options.record_type == BYTE_ARRAY:
        return pa.schema([pa.field("byteArray", pa.binary())])
    with ThreadPoolExecutor(_OPENERS, "tfos-tfrecord-sample") as pool:
        seen: dict[str, FeatureSeen] = {}
        for url, part in zip(urls, pool.map(lambda url: _of_file(url, options, sample), urls), strict=True):
            with DataError.of(f"{url} differs from earlier files"):
                seen = _merged([seen, part])
    fields = [pa.field(name, _type(seen[name], binary)) for name in sorted(seen) if seen[name].kind != EMPTY]
    if not fields:
        raise DataError("no record has a feature to infer a schema from: give one with .schema(...)")
    return pa.schema(fields)


def _of_file(url: str, options: ReadOptions, sample: int) -> dict[str, FeatureSeen]:
    parts: list[dict[str, FeatureSeen]] = []
    try:
        for chunk, count in _heads(url, options, sample):
            parts.append(_of_chunk(chunk, count, options.record_type))
        return _merged(parts)
    except (Corrupt, Malformed) as error:
        if options.permissive:
            return _merged(parts)
        where = f" at byte {error.offset}" if isinstance(error, Corrupt) else ""
        raise DataError(
            f"{url} is corrupt{where}: {error}. Spark skips such files with option('mode', 'PERMISSIVE')"
        ) from None
    except DataError as error:
        raise DataError(f"{url}: {error}") from None


def _heads(url: str, options: ReadOptions, sample: int) -> Iterator[tuple[RecordChunk, int]]:
    for chunk in chunks(url, options.compression, _HEAD_BYTES):
        yield chunk, min(sample, len(chunk.starts))
        sample -= len(chunk.starts)
        if sample <= 0:
            return


def _of_chunk(chunk: RecordChunk, count: int, record_type: str) -> dict[str, FeatureSeen]:
    block = np.frombuffer(chunk.block, np.uint8)
    fields = (CONTEXT, FEATURE_LISTS) if record_type == SEQUENCE else (CONTEXT,)
    starts, ends = chunk.starts[:count], chunk.ends[:count]
    return _merged(_of_map(block, features.entries(block, starts, ends, field), count, field) for field in fields)


def _of_map(block: Block, map_entries: features.Entries, records: int, field: int) -> dict[str, FeatureSeen]:
    keys = pc.unique(map_entries.key).to_pylist()
    try:
        names = [key.decode() for key in keys]
    except UnicodeDecodeError as error:
        raise Malformed(f"a feature's name is not UTF-8: {error}") from None
    places = features.places_of(map_entries, names)
    return {
        name: _seen(block, map_entries.of(at, records), name, field) for name, at in zip(names, places, strict=True)
    }


def _seen(block: Block, spans: features.Spans, name: str, field: int) -> FeatureSeen:
    if field == FEATURE_LISTS:
        _, spans = features.feature_lists(block, spans)
    try:
        values = features.values_of(block, spans)
    except features.MixedKinds as error:
        raise DataError(
            f"feature {name!r} holds {' and '.join(error.args[0])} values: give a schema without it"
        ) from None
    counts = values.counts[values.counts >= 0]
    return FeatureSeen(values.kind, field, bool((counts == 1).all()), values.kind != BYTES or _is_text(values.flat))


def _is_text(array: pa.Array) -> bool:
    try:
        array.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _merged(parts: Iterable[dict[str, FeatureSeen]]) -> dict[str, FeatureSeen]:
    merged: dict[str, FeatureSeen] = {}
    for part in parts:
        for name, seen in part.items():
            merged[name] = merged[name].and_also(seen, name) if name in merged else seen
    return merged


def _type(seen: FeatureSeen, binary: bool) -> pa.DataType:
    inner = pa.string() if seen.kind == BYTES and seen.text and not binary else ARROW[seen.kind]
    if seen.field == FEATURE_LISTS:
        return pa.list_(pa.list_(inner))
    return inner if seen.single else pa.list_(inner)
