"""Files to Arrow batches: corrupt ones end in an error that names the place, or in a shorter file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tfos_magic.errors import DataError
from tfos_magic.tfrecord.decode import EXAMPLE, decode
from tfos_magic.tfrecord.framing import HEADER
from tfos_magic.tfrecord.protobuf_wire import Block, Malformed, Offsets
from tfos_magic.tfrecord.record_files import AUTO, BLOCK_BYTES, Corrupt, DataFile, RecordChunk, chunks

ROWS = 16384
"""Rows of a batch at most: what a step over them needs stays in the processor's cache."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReadOptions:
    """How files are read."""

    record_type: str = EXAMPLE
    compression: str = AUTO
    permissive: bool = False
    block_bytes: int = BLOCK_BYTES


def batches(
    url: str,
    schema: pa.Schema,
    options: ReadOptions,
    start: int = 0,
    stop: int | None = None,
    size: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read a file, or the records in bytes ``[start, stop)`` of one, as batches of ``schema``.

    At the first record that is damaged (its frame, a checksum, or bytes that are no message) a :class:`DataError` is
    raised that names the file and the byte, of its uncompressed content; with ``permissive`` the rest of the file is
    left out, and a warning of this module's logger says from which byte on, why, and how many rows were read.
    """
    rows = 0
    try:
        for chunk in chunks(url, options.compression, options.block_bytes, start, stop, size):
            for batch in _decoded(chunk, schema, options.record_type):
                rows += batch.num_rows
                yield batch
    except Corrupt as corrupt:
        message = f"the record at byte {corrupt.offset} of {url} is corrupt: {corrupt.reason}"
        if not options.permissive:
            raise DataError(
                f"{message}. Rewrite the file, or skip the rest of such files with option('mode', 'PERMISSIVE')"
            ) from None
        _log.warning("%s; %d rows of the file were read, the rest is skipped", message, rows)
    except DataError as error:
        raise DataError(f"{url}: {error}") from None


def _decoded(chunk: RecordChunk, schema: pa.Schema, record_type: str) -> Iterator[pa.RecordBatch]:
    block = np.frombuffer(chunk.block, np.uint8)
    for at in range(0, len(chunk.starts), ROWS):
        starts, ends = chunk.starts[at : at + ROWS], chunk.ends[at : at + ROWS]
        try:
            yield decode(block, starts, ends, schema, record_type)
        except Malformed as error:
            good = _first_malformed(block, starts, ends, schema, record_type)
            if good:
                yield decode(block, starts[:good], ends[:good], schema, record_type)
            offset = chunk.base + int(starts[good]) - HEADER
            raise Corrupt(offset, f"it cannot be read as {record_type}: {error}") from None


def _first_malformed(block: Block, starts: Offsets, ends: Offsets, schema: pa.Schema, kind: str) -> int:
    """Which of the records, one of which is malformed, is the first."""
    low, high = 0, len(starts)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            decode(block, starts[low:middle], ends[low:middle], schema, kind)
            low = middle
        except Malformed:
            high = middle
    return low


def grouped(files: list[DataFile], target: int) -> list[list[DataFile]]:
    """Put files that follow each other into groups of about ``target`` bytes. Opening a file counts as a mebibyte."""
    groups: list[list[DataFile]] = []
    room = 0
    for file in files:
        cost = file.bytes + (1 << 20)
        if not groups or cost > room:
            groups.append([])
            room = target
        groups[-1].append(file)
        room -= cost
    return groups
