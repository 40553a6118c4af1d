"""The files that a DataFrame reads: their names, sizes and times, by which it is known whether they were rewritten."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from tfos_magic.spark.failures import is_missing_file
from tfos_magic.spark.session import is_connect

MOST_LOOKED_AT = 200
"""Files whose size and time are looked at; of more, these many that lie evenly among them."""
GONE = "gone"

_STATUS = re.compile(r"path=([^;]*);.*?length=(\d+);.*?modification_time=(\d+)")


def files_mark(df: Any) -> str:
    """Give a short text that changes when the files of ``df`` do: new names, sizes or times of change.

    Empty where nothing can be told: rows that come from no files, or were cached. :data:`GONE` where files that ``df``
    reads are not there any more. In a Connect session sizes and times are told of local files alone. Takes some 0.1 ms
    for each of ``MOST_LOOKED_AT`` files at most.
    """
    try:
        known = _names(df)
        if not known:
            return ""
        names = [known[at] for at in _places(len(known))]
        local = all(urlsplit(name).scheme in ("", "file") for name in names)
        if is_connect(df.sparkSession):
            file_statuses = _local(filter(os.path.exists, _paths(names))) if local else []
        else:
            file_statuses = _local(_paths(names)) if local else _statuses(df.sparkSession, names)
    except Exception as error:  # a source may refuse to be looked at
        return GONE if is_missing_file(error) else ""
    return f"{len(known)}-{zlib.crc32(repr((known, sorted(file_statuses))).encode()):08x}"


def _names(df: Any) -> list[str]:
    """The files of a plan, as URLs, in which a space is no space; in one call to the JVM, however many they are."""
    if is_connect(df.sparkSession):
        return sorted(df.inputFiles())
    listed = _shown(df.sparkSession, df._jdf.inputFiles()).removeprefix("Array(").removesuffix(")")
    return sorted(listed.split(", ")) if listed else []


def _places(count: int) -> Sequence[int]:
    if count <= MOST_LOOKED_AT:
        return range(count)
    return [count * at // MOST_LOOKED_AT for at in range(MOST_LOOKED_AT)]


def _paths(names: Sequence[str]) -> list[str]:
    return [unquote(urlsplit(name).path) for name in names]


def _local(paths: Iterable[str]) -> list[Any]:
    """Sizes and times of files on a disk of this machine, where Hadoop's file system would ask a shell for each."""
    statuses = [(path, os.stat(path)) for path in paths]
    return [(path, status.st_size, status.st_mtime_ns) for path, status in statuses]


def _statuses(spark: Any, names: Sequence[str]) -> list[Any]:
    """Path, size and time of files, as Hadoop's file system tells them; one call for all."""
    jvm = spark._jvm
    made = jvm.org.apache.hadoop.fs.Path
    paths = spark._sc._gateway.new_array(made, len(names))
    for at, name in enumerate(names):
        paths[at] = made(jvm.java.net.URI(name))
    system = paths[0].getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return _STATUS.findall(_shown(spark, system.listStatus(paths)))


def _shown(spark: Any, array: Any) -> str:
    return str(spark._jvm.scala.runtime.ScalaRunTime.stringOf(array))
