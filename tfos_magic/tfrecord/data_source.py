"""TFRecord files as a data source of Spark's DataFrame reader and writer."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tfos_magic.errors import UsageError
from tfos_magic.tfrecord.decode import EXAMPLE, RECORD_TYPES, refuse_types
from tfos_magic.tfrecord.hive_partitions import fits, folder_schema, typed, with_folders
from tfos_magic.tfrecord.reading import ReadOptions, batches, grouped
from tfos_magic.tfrecord.record_files import AUTO, GZIP, NONE, DataFile, list_files
from tfos_magic.tfrecord.schema_inference import infer
from tfos_magic.tfrecord.writing import Job, new_job

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # which Spark 4.0 does not have: it shows no conditions

NAME = "tfrecord"
SAMPLE_RECORDS = 100
PARTITION_BYTES = 64 << 20
_COMPRESSION = {"AUTO": AUTO, "GZIP": GZIP, "NONE": NONE, "UNCOMPRESSED": NONE}


class TFRecordSource(DataSource):
    """``spark.read.format("tfrecord")`` and ``df.write.format("tfrecord")``.

    Options of both: ``recordType`` (``Example``, ``SequenceExample`` or ``ByteArray``, one binary column) and
    ``compressionType`` (``GZIP`` or ``NONE``; without it reading goes by the name ``.gz``, and writing does not
    compress). Options of reading: ``sampleRecords`` (how many records of each file the schema is inferred from),
    ``binary`` (``true``: bytes are never strings), ``mode`` (``FAILFAST`` or ``PERMISSIVE``), ``pathGlobFilter``
    (on file names) and ``maxPartitionBytes`` (files below it share a task; a file is never split).

    Folders such as ``day=3`` below the path are columns. Conditions on them leave whole files unread where the session
    lets Python sources see conditions: :class:`PruningTFRecordSource` is registered there.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """Inferred from the heads of the files; columns of folders come last, also where records have their name."""
        binary = _choice(self.options, "binary", {"FALSE": False, "TRUE": True}, False)
        sample = _number(self.options, "sampleRecords", SAMPLE_RECORDS)
        files = _files(self.options)
        folders = folder_schema(files)
        inside = infer([file.url for file in files], _read_options(self.options), sample, binary)
        fields = [field for field in inside if field.name not in folders.names]
        return from_arrow_schema(pa.schema([*fields, *folders]), prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> TFRecordReader:
        return TFRecordReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TFRecordWriter:
        return TFRecordWriter(dict(self.options), schema, overwrite)


class PruningTFRecordSource(TFRecordSource):
    """For sessions with ``spark.sql.python.filterPushdown.enabled``; others refuse a source that takes conditions."""

    def reader(self, schema: StructType) -> PruningReader:
        return PruningReader(dict(self.options), schema)


@dataclass
class Files(InputPartition):
    """What one task reads."""

    files: list[DataFile]


class TFRecordReader(DataSourceReader):
    """Reads files of one schema; a task reads whole files."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._schema = to_arrow_schema(schema)
        self._options = _read_options(options)
        self._files = _files(options)
        folders = folder_schema(self._files).names
        self._folders = [field for field in self._schema if field.name in folders]
        self._inside = pa.schema([field for field in self._schema if field.name not in folders])
        refuse_types(self._inside, self._options.record_type)
        self._target = _number(options, "maxPartitionBytes", PARTITION_BYTES)

    def partitions(self) -> list[InputPartition]:
        return [Files(files) for files in grouped(self._files, self._target)] or [Files([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Files)
        logging.basicConfig()  # a Python worker of Spark has no handler: what is left out shall be seen in its log
        for file in partition.files:
            values = typed(file, self._folders)
            for batch in batches(file.url, self._inside, self._options):
                yield with_folders(batch, values, self._schema) if values else batch


class PruningReader(TFRecordReader):
    """Leaves out files whose folders rule them out. Spark looks at the conditions again, whatever they are."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        values = [{name: value.as_py() for name, value in typed(f, self._folders).items()} for f in self._files]
        pairs = zip(self._files, values, strict=True)
        self._files = [file for file, known in pairs if all(fits(known, condition) for condition in filters)]
        return filters


@dataclass
class Written(WriterCommitMessage):
    """The name of the file that a task wrote; empty when it had no rows."""

    name: str


class TFRecordWriter(DataSourceArrowWriter):
    """Writes a file for each task that has rows."""

    def __init__(self, options: dict[str, str], schema: StructType, overwrite: bool) -> None:
        record_type = _record_type(options)
        refuse_types(to_arrow_schema(schema), record_type)
        (path,) = _paths(options)
        compressed = _choice(options, "compressionType", _COMPRESSION, AUTO) == GZIP
        self._job: Job = new_job(path, record_type, compressed, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return Written(self._job.write(iterator, context.partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._job.commit([message.name for message in messages if isinstance(message, Written) and message.name])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._job.clear()


def _read_options(options: Any) -> ReadOptions:
    return ReadOptions(
        record_type=_record_type(options),
        compression=_choice(options, "compressionType", _COMPRESSION, AUTO),
        permissive=_choice(options, "mode", {"FAILFAST": False, "PERMISSIVE": True}, False),
    )


def _record_type(options: Any) -> str:
    return _choice(options, "recordType", {name.upper(): name for name in RECORD_TYPES}, EXAMPLE)


def _files(options: Any) -> list[DataFile]:
    """The files that have something in them."""
    return [file for file in list_files(_paths(options), _option(options, "pathGlobFilter")) if file.bytes]


def _paths(options: Any) -> list[str]:
    """What ``load`` or ``save`` was given: Spark passes one path as it is and several as JSON."""
    path, paths = _option(options, "path"), _option(options, "paths")
    requested_paths = [path] if path else json.loads(paths or "[]")
    if not requested_paths:
        raise UsageError("a path is missing: give one to load() or save()")
    return [str(one) for one in requested_paths]


def _option(options: Any, name: str) -> str:
    """Names of options are told apart without case, also in the plain dictionary that they were copied to."""
    return next((str(value) for key, value in options.items() if key.lower() == name.lower()), "")


def _choice(options: Any, name: str, choices: dict[str, Any], default: Any) -> Any:
    given = _option(options, name)
    if given and given.upper() not in choices:
        raise UsageError(f"option {name} is {given!r}: it can be {', '.join(choices)}")
    return choices[given.upper()] if given else default


def _number(options: Any, name: str, default: int) -> int:
    given = _option(options, name)
    if given and not (given.isdigit() and int(given)):
        raise UsageError(f"option {name} is {given!r}: give a whole number above 0")
    return int(given) if given else default
