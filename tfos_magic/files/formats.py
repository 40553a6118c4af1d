"""Which format files are of, where nobody says so: by their names, and Parquet by how it begins as well."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tfos_magic.errors import DataError
from tfos_magic.storage import open_system
from tfos_magic.tfrecord.record_files import DataFile

FORMATS = ("parquet", "tfrecord", "csv")
_MAGIC = b"PAR1"
_NAME = re.compile(
    r"\.(?:(?P<parquet>parquet|pq)|(?P<tfrecord>tfrecords?)|(?P<csv>csv))(?:-\d+-of-\d+)?(?:\.(?:gz|gzip|bz2|zst|lz4))?$",
    re.IGNORECASE,
)
_CHOICE = " or ".join(f"format={name!r}" for name in FORMATS)


def format_of(files: Sequence[DataFile]) -> str:
    """The one format of all ``files``; the first of those whose names tell none is looked at.

    Raises :class:`DataError` where files are of different formats, or one is of none that can be told.
    """
    first: dict[str, DataFile] = {}
    for file in files:
        first.setdefault(_by_name(file), file)
    if (unnamed := first.pop("", None)) is not None:
        first.setdefault(_by_content(unnamed), unnamed)
    if len(first) > 1:
        found = " and ".join(f"{file.url} of format {name!r}" for name, file in first.items())
        raise DataError(f"there are files of several formats: {found}. Give a glob of one kind, or say {_CHOICE}")
    return next(iter(first))


def _by_name(file: DataFile) -> str:
    match = _NAME.search(file.url.rpartition("/")[2])
    return str(match.lastgroup) if match is not None else ""


def _by_content(file: DataFile) -> str:
    system, path = open_system(file.url)
    try:
        with system.open(path, "rb") as opened:
            begins = opened.read(len(_MAGIC))
    except OSError as error:
        raise DataError(f"{file.url} cannot be read: {error}") from error
    if begins != _MAGIC:
        raise DataError(f"{file.url} is not a Parquet file, and its name suggests no other format: say {_CHOICE}")
    return "parquet"
