"""Parquet files in place: the units are row groups, and footers tell their rows."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from tfos_magic.columns.file_types import plain_type
from tfos_magic.errors import DataError
from tfos_magic.files.file_source import Piece, Unit, naming, refuse_missing, refuse_others
from tfos_magic.files.parquet import open_parquet, read_groups
from tfos_magic.tfrecord.record_files import DataFile


class ParquetSource:
    """The columns are those of the first file that has rows; all files must have them, in the same types."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self.files = files
        self.schema, self._first = self._schema()

    def _schema(self) -> tuple[pa.Schema, DataFile]:
        """The columns, and the file that shows them: one without rows may not have their types."""
        for place, each in enumerate(self.files):
            with _opened(each) as file:
                if file.metadata.num_rows or place == len(self.files) - 1:
                    return file.schema_arrow, each
        raise AssertionError("there are files")

    def count(self, file: DataFile, names: Sequence[str], whole: bool = False) -> list[Piece]:
        with _opened(file) as opened:
            if opened.metadata.num_rows:
                self._check(file, opened.schema_arrow, names)
                if whole:
                    refuse_others(file, opened.schema_arrow.names, self.schema.names, self._first)
            groups = range(opened.metadata.num_row_groups)
            return [(index, index + 1, opened.metadata.row_group(index).num_rows) for index in groups]

    def read(self, unit: Unit, names: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        with _opened(unit.file) as file:
            self._check(unit.file, file.schema_arrow, names)
            yield from read_groups(file, range(unit.start, unit.stop), names)

    def _check(self, file: DataFile, schema: pa.Schema, names: Sequence[str]) -> None:
        refuse_missing(file, schema.names, names, self._first)
        for name in names:
            one, other = plain_type(self.schema.field(name).type), plain_type(schema.field(name).type)
            if one != other:
                raise DataError(
                    f"column {name!r} is {schema.field(name).type} in {file.url} and {self.schema.field(name).type} in "
                    f"{self._first.url}: write them with one type, or read them as a Spark DataFrame"
                )


@contextmanager
def _opened(file: DataFile) -> Iterator[pq.ParquetFile]:
    with naming(file, "Parquet"), open_parquet(file.url, file.bytes) as opened:
        yield opened
