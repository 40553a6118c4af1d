"""Columns that the names of folders hold, as in ``sales/day=3/part-0.parquet``, beside those of files of any format."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pyarrow as pa

from tfos_magic.files.file_source import FileSource, Piece, Unit
from tfos_magic.tfrecord.hive_partitions import typed, with_folders
from tfos_magic.tfrecord.record_files import DataFile

ROWS = 16384


class FolderColumns:
    """The files of ``source`` with the columns ``folders``.

    Where files have a column of that name too, it stands where theirs does, with the folder's values, as in Spark;
    other columns of folders come last.
    """

    def __init__(self, source: FileSource, folders: pa.Schema) -> None:
        self._source, self._folders = source, set(folders.names)
        fields = {field.name: field for field in [*source.schema, *folders]}  # the later one, at the first one's place
        self.files = source.files
        self.schema = pa.schema(list(fields.values()))
        for file in self.files:
            typed(file, list(folders))

    def count(self, file: DataFile, names: Sequence[str], whole: bool = False) -> list[Piece]:
        return self._source.count(file, [name for name in names if name not in self._folders], whole)

    def read(self, unit: Unit, names: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        fields = [self.schema.field(name) for name in names]
        values = typed(unit.file, [field for field in fields if field.name in self._folders])
        inside = [name for name in names if name not in values]
        batches = self._source.read(unit, inside) if inside else _rows(unit.rows)
        for batch in batches:
            yield with_folders(batch, values, [f if f.name in values else batch.schema.field(f.name) for f in fields])


def _rows(count: int) -> Generator[pa.RecordBatch, None, None]:
    """Batches of no columns with ``count`` rows in all."""
    for at in range(0, count, ROWS):
        rows = pa.nulls(min(ROWS, count - at))
        yield pa.record_batch([rows], names=[""]).select([])
