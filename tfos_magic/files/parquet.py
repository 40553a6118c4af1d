"""Parquet files, or the parts of them that splits name, as bounded Arrow batches.

A split is a range of a file's bytes; the row groups whose midpoint lies in it are its own. That is the rule of
parquet-mr (``ParquetMetadataConverter.filterFileMetaDataByMidpoint``), so that the splits Spark makes of a file give
here the rows, and the order, that Spark reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tfos_magic.storage import is_local, open_system, refuse_rewritten

BATCH_BYTES = 4 << 20
MOST_ROWS = 16384
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 8}


@dataclass(frozen=True)
class ParquetSplit:
    """Bytes ``[start, start + length)`` of a file by its path or URL, which has ``size`` bytes in all."""

    path: str
    start: int
    length: int
    size: int


@contextmanager
def open_parquet(path: str, size: int | None = None) -> Iterator[pq.ParquetFile]:
    """Open a file by path or URL and read its footer.

    Raises ``OSError`` where the file is not there, or does not have ``size`` bytes any more, and ``pa.ArrowException``
    where it is no Parquet file.
    """
    system, root = open_system(path)
    # Arrow reads local files itself: Python's file objects take the interpreter's lock at every read.
    with pa.OSFile(root) if is_local(system) else system.open(root, "rb") as source:
        if size is not None:
            refuse_rewritten(source, path, size)
        # Spark writes timestamps as INT96, which Arrow takes for nanoseconds: years before 1678 and after 2262
        # would become others.
        with pq.ParquetFile(source, pre_buffer=not is_local(system), coerce_int96_timestamp_unit="us") as file:
            yield file


def groups_between(metadata: Any, start: int, stop: int) -> list[int]:
    """Which row groups of a file (its ``pq.FileMetaData``) have their midpoint in bytes ``[start, stop)``."""
    return [index for index in range(metadata.num_row_groups) if start <= _midpoint(metadata.row_group(index)) < stop]


def read_groups(
    file: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str], batch_bytes: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """Read row groups in the order given, the named top-level columns in theirs, in batches of about ``batch_bytes``.

    One thread decodes; no batch has rows of two row groups.
    """
    for group in groups:
        rows = batch_rows(file.metadata.row_group(group), columns, batch_bytes)
        for batch in file.iter_batches(rows, [group], list(columns), use_threads=False):
            yield batch.select(list(columns))


def batch_rows(group: Any, columns: Sequence[str], batch_bytes: int) -> int:
    """How many rows of a row group (``pq.RowGroupMetaData``), decoded, take about ``batch_bytes``."""
    tops = set(columns)
    chunks = (group.column(index) for index in range(group.num_columns))
    # Chunks that are dictionary-encoded hold less than they decode to: the number of values says more.
    total = sum(
        max(chunk.total_uncompressed_size, chunk.num_values * _WIDTHS.get(chunk.physical_type, 16))
        for chunk in chunks
        if chunk.path_in_schema in tops or chunk.path_in_schema.partition(".")[0] in tops
    )
    return max(1, min(MOST_ROWS, batch_bytes * group.num_rows // max(1, total)))


def _midpoint(group: Any) -> int:
    first = group.column(0)
    start = first.data_page_offset
    if first.has_dictionary_page and first.dictionary_page_offset is not None:
        start = min(start, first.dictionary_page_offset)
    total = sum(group.column(index).total_compressed_size for index in range(group.num_columns))
    return int(start + total // 2)
