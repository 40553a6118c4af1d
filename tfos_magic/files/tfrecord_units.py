"""TFRecord files in place: units are runs of records, or whole files where these are compressed."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Generator, Sequence
from typing import Any

import pyarrow as pa

from tfos_magic.errors import DataError
from tfos_magic.files.file_source import Piece, Unit, naming
from tfos_magic.storage import is_local, open_system
from tfos_magic.tfrecord.decode import RECORD_TYPES, refuse_types
from tfos_magic.tfrecord.framing import FOOTER, HEADER
from tfos_magic.tfrecord.reading import ReadOptions, batches
from tfos_magic.tfrecord.record_files import AUTO, GZIP, NONE, Corrupt, DataFile, chunks, is_gzip
from tfos_magic.tfrecord.schema_inference import infer

SAMPLE_RECORDS = 100
PIECE_BYTES = 8 << 20
_LENGTH = struct.Struct("<Q")


class TFRecordFiles:
    """The columns are inferred from the heads of all files where no ``schema`` is given.

    ``compression`` is ``"GZIP"``, ``"NONE"`` or ``"AUTO"``, by the name ``.gz``; ``record_type`` is ``"Example"``,
    ``"SequenceExample"`` or ``"ByteArray"``.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        schema: pa.Schema | None = None,
        compression: str = AUTO,
        record_type: str = RECORD_TYPES[0],
    ) -> None:
        if compression not in (AUTO, GZIP, NONE):
            raise DataError(f"compression {compression!r} is unknown: it can be {AUTO}, {GZIP} or {NONE}")
        if record_type not in RECORD_TYPES:
            raise DataError(f"record_type {record_type!r} is unknown: it can be {', '.join(RECORD_TYPES)}")
        self.files = files
        self._options = ReadOptions(record_type=record_type, compression=compression)
        self.schema = infer([file.url for file in files], self._options, SAMPLE_RECORDS) if schema is None else schema
        refuse_types(self.schema, record_type)

    def count(self, file: DataFile, names: Sequence[str], whole: bool = False) -> list[Piece]:
        with naming(file, "TFRecord"):
            try:
                return self._pieces(file.url)
            except Corrupt as corrupt:
                raise DataError(
                    f"the record at byte {corrupt.offset} of {file.url} is corrupt: {corrupt.reason}. Rewrite the file"
                ) from None

    def _pieces(self, url: str) -> list[Piece]:
        system, path = open_system(url)
        if is_gzip(url, self._options.compression):
            return [(0, 0, sum(len(chunk.starts) for chunk in chunks(url, self._options.compression)))]
        if is_local(system):
            return _pieces_by_lengths(path)
        return [(chunk.base, chunk.base + int(chunk.ends[-1]) + FOOTER, len(chunk.starts)) for chunk in chunks(url)]

    def read(self, unit: Unit, names: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        schema = pa.schema([self.schema.field(name) for name in names])
        with naming(unit.file, "TFRecord"):
            # A file that is read to its end has other rows than were counted, where it was rewritten.
            size = None if unit.stop else unit.file.bytes
            yield from batches(unit.file.url, schema, self._options, unit.start, unit.stop or None, size)


def _pieces_by_lengths(path: str) -> list[Piece]:
    """Go from length to length, which touches one page of a record; checksums wait for reading."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        return _pieces(mapped, len(mapped))


def _pieces(block: Any, end: int) -> list[Piece]:
    unpack, pieces, start, rows, at = _LENGTH.unpack_from, [], 0, 0, 0
    while at + HEADER <= end:
        following = at + HEADER + unpack(block, at)[0] + FOOTER
        if following > end:
            break
        at, rows = following, rows + 1
        if at - start >= PIECE_BYTES:
            pieces.append((start, at, rows))
            start, rows = at, 0
    if at != end:
        raise Corrupt(at, "the file ends within it, or its length is damaged")
    return [*pieces, (start, at, rows)] if rows else pieces
