"""CSV files in place: a unit is a file, read block by block."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc

from tfos_magic.errors import DataError
from tfos_magic.files.sources import Piece, Unit, naming
from tfos_magic.storage import is_local, open_system
from tfos_magic.tfrecord.record_files import DataFile

BLOCK_BYTES = 4 << 20
_COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


class CSVSource:
    """The first line names the columns, unless ``column_names`` are given; ``delimiter`` parts the values.

    Types are those that the first block of the first file shows, where ``schema`` does not give them; of a column that
    has no value there, those of the next file that has one. ``compression`` is a name of Arrow's, such as ``"gzip"``,
    or goes by the file's name.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        schema: pa.Schema | None = None,
        delimiter: str = ",",
        column_names: Sequence[str] | None = None,
        compression: str = "AUTO",
    ) -> None:
        self.files = files
        self._parse = pc.ParseOptions(delimiter=delimiter)
        self._names = list(column_names or [])
        self._compression = compression
        self._types = {field.name: field.type for field in schema or []}
        self.schema = self._schema()
        for name in self._types:
            if name not in self.schema.names:
                raise DataError(f"{files[0].url} has no column {name!r}, which schema= asks for")

    def _schema(self) -> pa.Schema:
        schema: pa.Schema | None = None
        for file in self.files:
            with self._opened(file, pc.ConvertOptions(column_types=self._types)) as reader:
                shown = {field.name: field for field in reader.schema}
            fields = list(shown.values()) if schema is None else schema
            schema = pa.schema([shown.get(f.name, f) if pa.types.is_null(f.type) else f for f in fields])
            if not any(pa.types.is_null(field.type) for field in schema):
                break
        return schema

    def count(self, file: DataFile, names: Sequence[str]) -> list[Piece]:
        self._check(file, names)
        # One column, as text, is all that has to be converted to count the rows.
        name = (names or self.schema.names)[0]
        options = pc.ConvertOptions(include_columns=[name], column_types={name: pa.binary()})
        with self._opened(file, options) as reader:
            return [(0, 0, sum(batch.num_rows for batch in reader))]

    def _check(self, file: DataFile, names: Sequence[str]) -> None:
        """Look whether the first block of a file has ``names``, in values of their types."""
        try:
            with self._opened(file, self._typed(names)):
                return
        except DataError:
            with self._opened(file, pc.ConvertOptions()) as reader:
                found: pa.Schema = reader.schema
        for name in names:
            if name not in found.names:
                raise DataError(
                    f"{file.url} has no column {name!r}, which {self.files[0].url} has: rewrite it, or name only "
                    "columns that all files have"
                )
            try:
                with self._opened(file, self._typed([name])):
                    continue
            except DataError:
                here, there = found.field(name).type, self.schema.field(name).type
                numbers = all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (here, there))
                one = "double" if numbers else "string"
                raise DataError(
                    f"column {name!r} is {here} in {file.url} and {there} in {self.files[0].url}: give one type for "
                    f"all, as by schema={{{name!r}: {one!r}}}"
                ) from None

    def _typed(self, names: Sequence[str]) -> pc.ConvertOptions:
        types = {name: self.schema.field(name).type for name in names}
        return pc.ConvertOptions(include_columns=list(names), column_types=types)

    def read(self, unit: Unit, names: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        with self._opened(unit.file, self._typed(names)) as reader:
            yield from reader

    @contextmanager
    def _opened(self, file: DataFile, convert: pc.ConvertOptions) -> Iterator[Any]:
        """Open a file; what Arrow finds wrong becomes a :class:`DataError` that names it."""
        read = pc.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=self._names)
        remedy = ". If a column's type was taken for another, give it with schema={'name': 'double'}"
        with naming(file, "CSV", remedy):
            system, path = open_system(file.url)
            with pa.OSFile(path) if is_local(system) else system.open(path, "rb") as raw:
                source = raw if isinstance(raw, pa.NativeFile) else pa.PythonFile(raw, "r")
                kind = self._kind(file)
                stream = pa.CompressedInputStream(source, kind) if kind else source
                with pc.open_csv(stream, read, self._parse, convert) as reader:
                    yield reader

    def _kind(self, file: DataFile) -> str | None:
        if self._compression == "AUTO":
            return next((kind for end, kind in _COMPRESSIONS.items() if file.url.endswith(end)), None)
        return None if self._compression.upper() == "NONE" else self._compression.lower()
