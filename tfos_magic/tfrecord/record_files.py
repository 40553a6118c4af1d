"""TFRecord files on any file system: which there are, their blocks, compressed or not."""

from __future__ import annotations

import fnmatch
import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, Any

from tfos_magic.errors import DataError
from tfos_magic.storage import (
    SEE_THE_STORE,
    forget_system,
    is_local,
    open_remedy,
    open_system,
    refuse_missing_bucket,
    refuse_rewritten,
)
from tfos_magic.tfrecord.framing import Offsets, split
from tfos_magic.tfrecord.protobuf_wire import PADDING

GZIP, NONE, AUTO = "GZIP", "NONE", "AUTO"
BLOCK_BYTES = 8 << 20
_MAGIC = frozenset("*?[{")


@dataclass(frozen=True)
class DataFile:
    """A file as a path or URL that every process opens alike, its size in bytes, and its path ``below`` the folder that
    was asked for."""

    url: str
    bytes: int
    below: str = ""


@dataclass(frozen=True)
class RecordChunk:
    """Whole records of a file: their bytes with padding, the block's place in the file, and where each record lies."""

    block: bytes
    base: int
    starts: Offsets
    ends: Offsets


class Corrupt(Exception):
    """A file is damaged from ``offset`` on, which counts uncompressed bytes; ``reason`` says how."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset, self.reason = offset, reason


def list_files(paths: Sequence[str], pattern: str = "") -> list[DataFile]:
    """The files that paths, folders (with all folders in them) and globs name, in order; each once.

    Names, and folders below those given, that begin with ``_`` or ``.`` are left out, found by a glob or not, and so
    are names that do not fit ``pattern``. Raises :class:`DataError` for a path that is not there.
    """
    files_by_url: dict[str, DataFile] = {}
    for path in paths:
        for file in _files_of(path):
            if not pattern or fnmatch.fnmatch(file.url.rpartition("/")[2], pattern):
                files_by_url.setdefault(file.url, file)
    return list(files_by_url.values())


def _files_of(path: str) -> Iterator[DataFile]:
    with _explained(path):
        system, root = open_system(path)
        system.invalidate_cache()
        is_glob = bool(_MAGIC & set(root)) and not system.exists(root)
        tops = [top for top in sorted(system.glob(root)) if not _hidden(top[_fixed(root) :])] if is_glob else [root]
        if not tops:
            raise FileNotFoundError(path)
        for top in tops:
            info = system.info(top)
            if info["type"] != "directory":
                yield _data_file(system, top, info)
                continue
            for name, below in sorted(system.find(top, detail=True).items()):
                if not _hidden(name[len(str(top)) :]):
                    yield replace(_data_file(system, name, below), below=name[len(str(top)) :].lstrip("/"))


def _fixed(glob: str) -> int:
    """How long the folder is that a glob begins with, which is as it is written."""
    first = min(place for place, letter in enumerate(glob) if letter in _MAGIC)
    return glob.rfind("/", 0, first) + 1


def _data_file(system: Any, name: str, info: dict[str, Any]) -> DataFile:
    return DataFile(name if is_local(system) else system.unstrip_protocol(name), int(info.get("size") or 0))


def _hidden(below: str) -> bool:
    # As Spark has it: the column of a folder such as "_c0=3" may have any name.
    parts = (part for part in below.split("/") if part)
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts)


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Tell a path that is not there, and one that cannot be listed, as an error with a remedy."""
    try:
        yield
    except FileNotFoundError:
        refuse_missing_bucket(*open_system(path))
        raise DataError(
            f"there is nothing at {path!r}: give an existing file or folder, or a glob that matches something"
        ) from None
    except (ImportError, ValueError) as error:
        raise DataError(f"{path!r} cannot be opened: {str(error).rstrip('.')}. {open_remedy(error)}") from error
    except Exception as error:  # every file system, and every client library, has errors of its own
        remedy = "See that it may be read"
        if "://" in path:
            remedy = SEE_THE_STORE
            forget_system(open_system(path)[0])
        raise DataError(f"{path!r} cannot be listed: {str(error).rstrip('.')}. {remedy}") from None


def is_gzip(url: str, compression: str) -> bool:
    """Whether a file is compressed, by its name where ``compression`` is ``AUTO``."""
    return compression == GZIP or (compression == AUTO and url.lower().endswith((".gz", ".gzip")))


def chunks(
    url: str,
    compression: str = AUTO,
    block_bytes: int = BLOCK_BYTES,
    start: int = 0,
    stop: int | None = None,
    size: int | None = None,
) -> Iterator[RecordChunk]:
    """Read a file's records, in blocks of about ``block_bytes``. Raises :class:`Corrupt` after the last good one.

    Of a file that is not compressed, those in bytes ``[start, stop)`` alone; records must begin at both.
    Raises ``OSError`` where it does not have ``size`` bytes any more.
    """
    system, path = open_system(url)
    with system.open(path, "rb") as file:
        if size is not None:
            refuse_rewritten(file, url, size)
        if is_gzip(url, compression):
            yield from _chunks_of(_Inflated(file), block_bytes)
            return
        file.seek(start)
        stream = file if stop is None else _Bounded(file, stop - start)
        yield from _chunks_of(stream, block_bytes, start)


def _chunks_of(stream: Any, block_bytes: int, base: int = 0) -> Iterator[RecordChunk]:
    rest, target_bytes = b"", block_bytes
    while True:
        try:
            fresh = stream.read(target_bytes - len(rest))
        except (EOFError, OSError, zlib.error) as error:
            if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                raise
            raise Corrupt(base + len(rest), f"it cannot be decompressed: {error}") from None
        if not fresh:
            break
        end = len(rest) + len(fresh)
        block = b"".join([rest, fresh, bytes(PADDING)])
        records = split(block, end)
        if len(records.starts):
            yield RecordChunk(block, base, records.starts, records.ends)
        if records.damage:
            raise Corrupt(base + records.rest, records.damage)
        rest = block[records.rest : end]
        base += records.rest
        target_bytes = max(block_bytes, records.needed)
    if rest:
        raise Corrupt(base, "the file ends within it")


class _Bounded:
    """The next ``left`` bytes of a file."""

    def __init__(self, file: IO[bytes], left: int) -> None:
        self._file, self._left = file, left

    def read(self, size: int) -> bytes:
        piece = self._file.read(min(size, self._left))
        self._left -= len(piece)
        return piece


class _Inflated:
    """A gzip stream that gives all that can be decompressed before it says that the rest cannot."""

    def __init__(self, file: IO[bytes]) -> None:
        self._gzip = gzip.GzipFile(fileobj=file, mode="rb")
        self._error: Exception | None = None

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and self._error is None:
            try:
                piece = self._gzip.read1(size)
            except (EOFError, OSError, zlib.error) as error:
                self._error = error
                break
            if not piece:
                break
            parts.append(piece)
            size -= len(piece)
        if self._error is not None and not parts:
            raise self._error
        return b"".join(parts)
