"""Writing: a task writes under a name of its own in a hidden folder, and the driver gives the files their names."""

from __future__ import annotations

import contextlib
import gzip
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any

import pyarrow as pa

from tfos_magic.errors import DataError
from tfos_magic.storage import is_local, make_folder, open_system, refuse_missing_bucket
from tfos_magic.tfrecord.encode import encode, pieces_of
from tfos_magic.tfrecord.framing import frame

SUCCESS = "_SUCCESS"
_GZIP_LEVEL = 6
"""zlib's own default, which TensorFlow's writer takes too."""


@dataclass(frozen=True)
class Job:
    """One write of a DataFrame: where to, of what, and the folder that its files lie in until all are there."""

    where: str
    record_type: str
    compressed: bool
    overwrite: bool
    key: str

    @property
    def hidden(self) -> str:
        return f"_temporary-{self.key}"

    def write(self, batches: Iterator[pa.RecordBatch], partition: int) -> str:
        """Write a task's rows. Gives the file's name, an empty one when there are no rows; a failure leaves no file."""
        frames = (frame(encode(piece, self.record_type)) for batch in batches for piece in pieces_of(batch))
        first = next(frames, None)
        if first is None:
            return ""
        system, root = open_system(self.where)
        name = f"part-{partition:05d}-{self.key}-{secrets.token_hex(4)}.tfrecord" + (".gz" if self.compressed else "")
        make_folder(system, f"{root}/{self.hidden}")
        path = f"{root}/{self.hidden}/{name}"
        try:
            with system.open(path, "wb") as file, self._sink(file) as sink:
                for frame_bytes in chain([first], frames):
                    sink.write(frame_bytes)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to tell
                system.rm_file(path)
            raise
        return name

    def commit(self, names: Sequence[str]) -> None:
        """Give the files their names; what was there before goes, where that was asked for, once all are there.

        Raises :class:`DataError`, and moves nothing, when a file that a task wrote is not to be seen from here.
        """
        system, root = open_system(self.where)
        make_folder(system, root)
        system.invalidate_cache()
        for name in names:
            if not system.exists(f"{root}/{self.hidden}/{name}"):
                raise DataError(
                    f"a task wrote {name}, which is not in {self.where} as the driver sees it: give a path on storage "
                    "that the driver and all executors share"
                )
        before = [entry["name"] for entry in system.ls(root, detail=True)] if self.overwrite else []
        for name in names:
            system.mv(f"{root}/{self.hidden}/{name}", f"{root}/{name}")
        for path in before:
            if path.rstrip("/").rpartition("/")[2] != self.hidden:
                system.rm(path, recursive=True)
        self.clear()
        system.pipe_file(f"{root}/{SUCCESS}", b"")

    def clear(self) -> None:
        """Remove the folder of files that did not get their names; with it, those of tasks that failed."""
        system, root = open_system(self.where)
        system.invalidate_cache()
        if system.exists(f"{root}/{self.hidden}"):
            system.rm(f"{root}/{self.hidden}", recursive=True)

    def _sink(self, file: IO[bytes]) -> Any:
        if not self.compressed:
            return contextlib.nullcontext(file)
        return gzip.GzipFile(filename="", mode="wb", compresslevel=_GZIP_LEVEL, fileobj=file, mtime=0)


def new_job(where: str, record_type: str, compressed: bool, overwrite: bool) -> Job:
    """Plan a write to the folder ``where``. Raises :class:`DataError` when that is a file, or its bucket not there."""
    system, root = open_system(where)
    refuse_missing_bucket(system, root)
    if system.isfile(root):
        raise DataError(f"{where!r} is a file: give the name of a folder, which will hold a file for each partition")
    absolute = root if is_local(system) else system.unstrip_protocol(root)
    return Job(absolute, record_type, compressed, overwrite, secrets.token_hex(6))
