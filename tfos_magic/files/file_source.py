"""What every format can do: tell the columns of its files, count their rows by unit, and read a unit."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tfos_magic.errors import DataError
from tfos_magic.storage import forget_system, open_system
from tfos_magic.tfrecord.record_files import DataFile

Piece = tuple[int, int, int]
"""A unit before it is told of which file: ``start``, ``stop`` and rows."""


@dataclass(frozen=True)
class Unit:
    """A part of a file that is read as a whole: from ``start`` to ``stop``, row groups of Parquet and bytes elsewhere.

    A ``stop`` of 0 is the file's end.
    """

    file: DataFile
    start: int
    stop: int
    rows: int


@contextmanager
def naming(file: DataFile, kind: str, remedy: str = "") -> Iterator[None]:
    """Let what is wrong with a file come as a :class:`DataError`, with the ``remedy`` for what Arrow finds wrong."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(
            f"{file.url} was deleted after the files were listed: run the cell again to list them"
        ) from None
    except Exception as error:  # every file system, and every client library, has errors of its own
        if "://" in file.url:
            forget_system(open_system(file.url)[0])
        raise DataError(
            f"{file.url} cannot be read as {kind}: {error}{remedy * isinstance(error, pa.ArrowException)}"
        ) from error


def refuse_missing(file: DataFile, found: Collection[str], names: Sequence[str], first: DataFile) -> None:
    """Raise :class:`DataError` for a file without one of the columns ``names`` of the ``first`` file."""
    if missing := [name for name in names if name not in found]:
        raise DataError(
            f"{file.url} has no column {missing[0]!r}, which {first.url} has: rewrite it, or name only columns that "
            "all files have"
        )


def refuse_others(file: DataFile, found: Sequence[str], known: Sequence[str], first: DataFile) -> None:
    """Raise :class:`DataError` for a file with a column that is not among the ``known`` ones of the ``first`` file."""
    if others := [name for name in found if name not in known]:
        raise DataError(
            f"{file.url} has a column {others[0]!r}, which {first.url} has not: name the columns that you want, by "
            "features=, or rewrite the files"
        )


class FileSource(Protocol):
    """Files of one format. All methods raise :class:`DataError`, naming the file, where it is not as it should be."""

    @property
    def files(self) -> Sequence[DataFile]:
        """The files, in the order of their rows."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The columns of all files, in Arrow types."""
        ...

    def count(self, file: DataFile, names: Sequence[str], whole: bool = False) -> list[Piece]:
        """The units of ``file``, in order, of which the columns ``names`` are to be read.

        A file with rows whose head shows that these are not there, or of other types, is refused already; so is one
        with other columns, where ``whole`` says that ``names`` are to be all there are. TFRecord files have no head:
        what a record of theirs lacks shows when it is read.
        """
        ...

    def read(self, unit: Unit, names: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        """Give the named columns of a unit in bounded batches."""
        ...
