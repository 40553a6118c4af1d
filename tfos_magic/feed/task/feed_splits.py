"""Runs in a Spark task: reads the files of a DataFrame that is a plain scan of Parquet, in place of the JVM.

Spark's reader makes rows of the columns, and its Arrow writer columns of the rows, value by value. The files hold
columns already: Arrow's reader gives the same values several times as fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tfos_magic.feed.task.feed_partition import RESULT_SCHEMA, FeedJob, feed_partition
from tfos_magic.files.parquet import ParquetSplit, groups_between, open_parquet, read_groups

RESULT_NAMES = [column.split()[0] for column in RESULT_SCHEMA.split(", ")]
UNLIKE = "Unlike"
"""The kind of a result row that says: Spark had better read this partition itself."""


@dataclass(frozen=True)
class Scan:
    """What Spark would read for a DataFrame: ``partitions`` in its order, and of their files the columns of ``schema``.

    ``schema`` has the names that Spark knows the files' columns by and the Arrow types in which it gives them;
    ``exact`` says that names are told apart by case. ``names`` are those of the DataFrame.
    """

    schema: pa.Schema
    names: tuple[str, ...]
    partitions: tuple[tuple[ParquetSplit, ...], ...]
    exact: bool = False


class Unlike(Exception):
    """A file cannot be read here, or not as Spark would."""


def feed_splits(job: FeedJob, scan: Scan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for ``mapInArrow`` on ``range(0, len(partitions), 1, len(partitions))``: see :func:`feed_partition`.

    Sends nothing, and gives one row of the kind ``UNLIKE``, where a file of the partition is not what Spark saw.
    """
    unlike = list(check_splits(scan, batches))
    if unlike:
        yield from unlike
    else:
        yield from feed_partition(job, read(scan, _partition()))


def check_splits(scan: Scan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for ``mapInArrow`` that sends nothing: gives a row where a file is not what Spark saw."""
    for _ in batches:  # Spark waits for the reader of what it sends
        pass
    try:
        check(scan, _partition())
    except Unlike as unlike:
        result: dict[str, Any] = {"partition": _partition(), "attempt": 0, "rows": 0, "bytes": 0}
        result |= {"digest": 0, "row_order": 0, "kind": UNLIKE, "error": str(unlike)}
        yield pa.RecordBatch.from_pylist([{name: result.get(name, "") for name in RESULT_NAMES}])


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def check(scan: Scan, partition: int) -> None:
    """Look at the footers of a partition's files. Raises :class:`Unlike`."""
    for split in scan.partitions[partition]:
        check_file(scan, split)


def check_file(scan: Scan, split: ParquetSplit) -> None:
    """Look at one file's size and columns. Raises :class:`Unlike`."""
    try:
        with open_parquet(split.path, split.size) as file:
            _columns(scan, split, file)
    except (OSError, ImportError, ValueError) as error:  # pa.ArrowInvalid is a ValueError
        raise Unlike(f"{split.path} cannot be read by this Python: {error}") from error


def read(scan: Scan, partition: int) -> Iterator[pa.RecordBatch]:
    """Give the rows of a partition as Spark's Arrow batches would hold them. Raises ``OSError`` that names the file."""
    for split in scan.partitions[partition]:
        try:
            yield from _read_split(scan, split)
        except (OSError, ValueError) as error:
            raise OSError(f"{split.path} cannot be read: {error}") from error


def _read_split(scan: Scan, split: ParquetSplit) -> Iterator[pa.RecordBatch]:
    with open_parquet(split.path, split.size) as file:
        columns = _columns(scan, split, file)
        groups = groups_between(file.metadata, split.start, split.start + split.length)
        for batch in read_groups(file, groups, list(dict.fromkeys(columns))):
            arrays = [_as(batch.column(name), kind) for name, kind in zip(columns, scan.schema.types, strict=True)]
            yield pa.record_batch(arrays, names=list(scan.names))


def _columns(scan: Scan, split: ParquetSplit, file: pq.ParquetFile) -> list[str]:
    """The file's own names of the scan's columns, after a look that Spark's values are those that Arrow reads."""
    file_schema = file.schema_arrow
    names: dict[str, list[str]] = {}
    for name in file_schema.names:
        names.setdefault(name if scan.exact else name.lower(), []).append(name)
    columns = []
    for field in scan.schema:
        matches = names.get(field.name if scan.exact else field.name.lower(), [])
        if len(matches) != 1:
            raise Unlike(f"{split.path} has {len(matches)} columns {field.name!r}")
        kind = file_schema.field(matches[0]).type
        if not _alike(kind, field.type):
            raise Unlike(f"column {field.name!r} is {kind} in {split.path}, but Spark gives {field.type}")
        columns.append(matches[0])
    return columns


def _alike(read: pa.DataType, target: pa.DataType) -> bool:
    """Whether casting from ``read``, the type of a file's column, to ``target`` leaves every value as it is."""
    if pa.types.is_list(target):
        lists = pa.types.is_list(read) or pa.types.is_large_list(read) or pa.types.is_fixed_size_list(read)
        return bool(lists and _alike(read.value_type, target.value_type))
    if pa.types.is_string(target) or pa.types.is_binary(target):
        return any(
            is_kind(read)
            for is_kind in (
                pa.types.is_string,
                pa.types.is_large_string,
                pa.types.is_binary,
                pa.types.is_large_binary,
            )
        )
    return bool(read == target)


def _as(array: pa.Array, target: pa.DataType) -> pa.Array:
    # Bytes that are read as text need not be UTF-8, and travel as bytes anyway.
    as_it_is = array.type == target or (pa.types.is_string(target) and pa.types.is_binary(array.type))
    return array if as_it_is else array.cast(target)
