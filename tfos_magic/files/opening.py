"""Finding the files of a format, and reading enough of them to know their columns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tfos_magic.errors import DataError
from tfos_magic.files.csv import CSVSource
from tfos_magic.files.file_source import FileSource
from tfos_magic.files.folder_columns import FolderColumns
from tfos_magic.files.formats import FORMATS, format_of
from tfos_magic.files.parquet_source import ParquetSource
from tfos_magic.files.tfrecord_units import TFRecordFiles
from tfos_magic.tfrecord.hive_partitions import folder_schema
from tfos_magic.tfrecord.record_files import DataFile, list_files

SOURCES: dict[str, Callable[..., FileSource]] = {
    "parquet": ParquetSource,
    "tfrecord": TFRecordFiles,
    "csv": CSVSource,
}
_TYPES = "bool, int32, int64, float, double, string, binary, date32, and others of Arrow"


def open_source(path: str | Sequence[str], kind: str | None = None, schema: Any = None, **options: Any) -> FileSource:
    """Find the files that a path, folder or glob (or several) names, sorted by name, and learn their columns.

    Without a ``kind`` it is what :func:`format_of` says.
    ``schema`` (an Arrow schema, or a mapping from names to Arrow types or their names) takes the place of what a
    TFRecord or CSV file, or the name of a folder, seems to hold. Folders such as ``day=3`` are columns. Raises
    :class:`DataError` where nothing is there, a path is named twice, folders differ in their columns, or the format is
    not known.
    """
    if kind is not None and kind not in FORMATS:
        raise DataError(f"format {kind!r} is unknown: it can be {', '.join(map(repr, FORMATS))}")
    paths = [path] if isinstance(path, str) else list(path)
    if twice := {each for each in paths if paths.count(each) > 1}:
        raise DataError(f"{', '.join(map(repr, sorted(twice)))}: each file is read once, so name a path once")
    files = sorted((file for file in list_files(paths) if file.bytes), key=lambda file: file.url)
    if not files:
        raise DataError(
            f"{', '.join(map(repr, paths))}: there are no files with any content. Correct the path, or write the "
            "rows first"
        )
    kind = kind or format_of(files)
    given, folders = _schema(schema), folder_schema(files)
    if folders and given is not None and kind != "parquet":
        # Types that are given count for folders too, and what reads the files is not to look for these in them.
        folders = pa.schema([_field(given, field) for field in folders])
        given = pa.schema([field for field in given if field.name not in folders.names])
    source = _source(files, kind, given, options)
    return FolderColumns(source, folders) if folders else source


def _field(given: pa.Schema, field: pa.Field) -> pa.Field:
    return given.field(field.name) if field.name in given.names else field


def _source(files: Sequence[DataFile], kind: str, given: pa.Schema | None, options: Mapping[str, Any]) -> FileSource:
    source = SOURCES[kind]
    taken = inspect.signature(source).parameters
    known = [name for name in taken if name not in ("files", "schema")]
    for name in options:
        if name not in known:
            raise DataError(f"format {kind!r} has no option {name!r}: it has {', '.join(known) or 'none'}")
    if "schema" in taken:
        return source(files, given, **options)
    if given is not None:
        raise DataError(
            f"{kind.capitalize()} files contain their schema: leave out schema= and choose columns with features="
        )
    return source(files, **options)


def _schema(given: Any) -> pa.Schema | None:
    if given is None or isinstance(given, pa.Schema):
        return given
    fields = []
    for name, kind in given.items():
        try:
            fields.append(pa.field(name, pa.type_for_alias(kind) if isinstance(kind, str) else kind))
        except ValueError:
            raise DataError(
                f"schema: {name!r} has the type {kind!r}, which Arrow does not know. Names of types are {_TYPES}"
            ) from None
    return pa.schema(fields)
