"""CSV files in place: a unit is a file, read block by block."""

from __future__ import annotations

import codecs
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc

from tfos_magic.errors import DataError
from tfos_magic.files.file_source import Piece, Unit, naming, refuse_missing, refuse_others
from tfos_magic.storage import is_local, open_system, refuse_rewritten
from tfos_magic.tfrecord.record_files import DataFile

BLOCK_BYTES = 4 << 20
_REMEDY = (
    ". The file must be text, in UTF-8 unless encoding= says another, with a line of names, which ends in a line "
    "break. If a column's type was taken for another, give it with schema={'name': 'double'}"
)
_COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


class CSVSource:
    """The first line names the columns, unless ``column_names`` are given; ``delimiter`` parts the values.

    A column whose name is empty, as pandas writes its index, is called ``_c0`` by its place, as Spark calls it.

    Types are those that the first block of the first file shows, where ``schema`` does not give them; of a column that
    has no value there, those of the next file that has one. What is empty is a null, quoted or not, also among strings,
    and nothing else is, as Spark has it. ``compression`` is a name of Arrow's, such as ``"gzip"``, or goes by the
    file's name; ``encoding`` is one of Python's.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        schema: pa.Schema | None = None,
        delimiter: str = ",",
        column_names: Sequence[str] | None = None,
        compression: str = "AUTO",
        encoding: str = "utf-8",
    ) -> None:
        self.files = files
        try:
            self._encoding = codecs.lookup(encoding).name
        except LookupError:
            raise DataError(f"encoding={encoding!r} is unknown: give one of Python's, such as 'latin-1'") from None
        if len(delimiter) != 1:
            raise DataError(f"delimiter={delimiter!r}: values of a CSV file are parted by one character")
        self._parse = pc.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        self._names = list(column_names or [])
        self._unnamed = ""
        self._compression = compression
        self._types = {field.name: field.type for field in schema or []}
        self.schema = self._schema()
        for name in self._types:
            if name not in self.schema.names:
                raise DataError(f"{files[0].url} has no column {name!r}, which schema= asks for")

    def _schema(self) -> pa.Schema:
        schema: pa.Schema | None = None
        for file in self.files:
            with self._opened(file, _convert(self._types)) as reader:
                shown = {field.name: field for field in self._named(file, reader.schema)}
            for name in shown.keys() - self._types.keys():
                if pa.types.is_binary(shown[name].type):
                    raise DataError(
                        f"column {name!r} of {file.url} holds what is no {self._encoding} text: say encoding=, as "
                        f"encoding='latin-1', or take it as bytes by schema={{{name!r}: 'binary'}}"
                    )
            fields = list(shown.values()) if schema is None else schema
            schema = pa.schema([shown.get(f.name, f) if pa.types.is_null(f.type) else f for f in fields])
            if not any(pa.types.is_null(field.type) for field in schema):
                break
        return schema

    def _named(self, file: DataFile, schema: pa.Schema) -> pa.Schema:
        """The columns of a file, each by a name of its own. Raises :class:`DataError` for a name that comes twice."""
        if "" in schema.names:
            self._unnamed = self._unnamed or f"_c{schema.names.index('')}"
        names = [name or self._unnamed for name in schema.names]
        if twins := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(
                f"{file.url} has several columns of the name {twins[0]!r}: rename all but one in the file's first line"
            )
        return pa.schema([field.with_name(name) for name, field in zip(names, schema, strict=True)])

    def _in_file(self, name: str) -> str:
        return "" if name == self._unnamed else name

    def count(self, file: DataFile, names: Sequence[str], whole: bool = False) -> list[Piece]:
        self._check(file, names, whole)
        # One column, as text, is all that has to be converted to count the rows.
        name = self._in_file((names or self.schema.names)[0])
        options = _convert({name: pa.binary()}, alone=True)
        with self._opened(file, options) as reader:
            return [(0, 0, sum(batch.num_rows for batch in reader))]

    def _check(self, file: DataFile, names: Sequence[str], whole: bool) -> None:
        """Look whether the first block of a file has ``names``, in values of their types."""
        typed = self._types_of(names)
        try:
            with self._opened(file, _convert(typed)) as reader:
                found, fits = reader.schema, True
        except DataError:
            with self._opened(file, _convert({})) as reader:
                found, fits = reader.schema, False
        found = self._named(file, found)
        refuse_missing(file, found.names, names, self.files[0])
        if not fits:
            for name in names:
                self._check_type(file, name, found.field(name).type)
        if whole:
            refuse_others(file, found.names, self.schema.names, self.files[0])

    def _check_type(self, file: DataFile, name: str, here: pa.DataType) -> None:
        try:
            with self._opened(file, self._typed([name])):
                return
        except DataError:
            there = self.schema.field(name).type
            numbers = all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (here, there))
            one = "double" if numbers else "string"
            raise DataError(
                f"column {name!r} is {here} in {file.url} and {there} in {self.files[0].url}: give one type, as "
                f"by schema={{{name!r}: {one!r}}}"
            ) from None

    def _types_of(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        return {self._in_file(name): self.schema.field(name).type for name in names}

    def _typed(self, names: Sequence[str]) -> pc.ConvertOptions:
        return _convert(self._types_of(names), alone=True)

    def read(self, unit: Unit, names: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        with self._opened(unit.file, self._typed(names)) as reader:
            for batch in reader:
                yield batch.rename_columns(list(names)) if self._unnamed in names else batch

    @contextmanager
    def _opened(self, file: DataFile, convert: pc.ConvertOptions) -> Iterator[Any]:
        """Open a file; what Arrow finds wrong becomes a :class:`DataError` that names it."""
        read = pc.ReadOptions(
            use_threads=False, block_size=BLOCK_BYTES, column_names=self._names, encoding=self._encoding
        )
        with naming(file, "CSV", _REMEDY):
            system, path = open_system(file.url)
            with pa.OSFile(path) if is_local(system) else system.open(path, "rb") as raw:
                refuse_rewritten(raw, file.url, file.bytes)
                source = raw if isinstance(raw, pa.NativeFile) else pa.PythonFile(raw, "r")
                kind = self._kind(file)
                stream = pa.CompressedInputStream(source, kind) if kind else source
                with pc.open_csv(stream, read, self._parse, convert) as reader:
                    yield reader

    def _kind(self, file: DataFile) -> str | None:
        if self._compression == "AUTO":
            return next((kind for end, kind in _COMPRESSIONS.items() if file.url.lower().endswith(end)), None)
        return None if self._compression.upper() == "NONE" else self._compression.lower()


def _convert(types: dict[str, pa.DataType], alone: bool = False) -> pc.ConvertOptions:
    """How values of these types become columns, ``alone`` or beside the others of a file."""
    columns = list(types) if alone else None
    return pc.ConvertOptions(include_columns=columns, column_types=types, null_values=[""], strings_can_be_null=True)
