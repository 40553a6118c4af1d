"""A file without a name that only grows: its disk space is gone with the last process that holds it open."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from tfos_magic.errors import FeedError, SpoolFull
from tfos_magic.feed.agent.disk_quota import DiskQuota

ALIGNMENT = 64
MARK_BYTES = 64
GROWTH_BYTES = (1 << 20, 64 << 20)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)


class DiskFull(FeedError):
    """The disk has no room, whatever the budget says."""


class AppendOnlyFile:
    """Append-only file in ``directory``, nameless and readable by its owner alone. Thread-safe.

    It begins with its ``mark``, 64 random bytes: numbers of descriptors and inodes are used again, a mark is not.
    What it takes of the disk is taken from ``budget``, which must have it unless the file ``overdraws``. Raises
    :class:`FeedError` when the file cannot be made.
    """

    def __init__(self, directory: str, budget: DiskQuota | None = None) -> None:
        self._directory, self._budget = directory, budget
        self.overdraws = True
        self._fd = _open_nameless(directory)
        self._lock = threading.Lock()
        self._end = 0
        self._allocated = 0
        self._writers = 0
        self._closed = False
        self.mark = secrets.token_bytes(MARK_BYTES)
        try:
            self.write(pa.py_buffer(self.mark))
        except FeedError:
            self.close()
            raise
        self.overdraws = False

    @property
    def size(self) -> int:
        """Bytes of blocks so far, each rounded up to 64."""
        return self._end - MARK_BYTES

    @property
    def path(self) -> str:
        """A path by which other processes of the same user open this file while this process holds it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def write(self, block: pa.Buffer) -> int:
        """Write ``block`` at the end; gives its offset, a multiple of 64.

        Raises :class:`SpoolFull` when the budget is spent and :class:`FeedError` on a full disk.
        """
        try:
            with self._reserved(block.size) as offset:
                _write_all(self._fd, memoryview(block), offset)
        except OSError as error:
            raise self._write_error(error, block.size) from error
        return offset

    def read(self, offset: int, size: int) -> pa.Buffer:
        """Give a block that was written."""
        with self._lock:
            if self._fd < 0:
                raise FeedError("these rows were released while being read: run the cell again")
            return pa.py_buffer(os.pread(self._fd, size, offset))

    def trim(self) -> None:
        """Give back what was allocated ahead; for when no more blocks are to come."""
        with self._lock:
            if self._fd >= 0 and not self._writers:
                os.ftruncate(self._fd, self._end)
                self._give_back(self._allocated - self._end)
                self._allocated = self._end

    def close(self) -> None:
        """Give the disk space back, once the writes under way have ended; later writes are refused."""
        with self._lock:
            self._closed = True
            self._close_when_idle()

    @contextmanager
    def _reserved(self, size: int) -> Iterator[int]:
        with self._lock:
            if self._closed:
                raise FeedError("this feed was released while receiving rows: feed the DataFrame again")
            offset = self._end
            end = offset + -(-size // ALIGNMENT) * ALIGNMENT
            self._allocate(end)
            self._end = end
            self._writers += 1
        try:
            yield offset
        finally:
            with self._lock:
                self._writers -= 1
                self._close_when_idle()

    def _allocate(self, end: int) -> None:
        # Writing into allocated blocks takes a fraction of the kernel time, and a full disk shows before a row is
        # written.
        if end <= self._allocated:
            return
        if self.overdraws:
            self._grow(end)
            return
        least, most = GROWTH_BYTES
        try:
            self._grow(max(end, self._allocated + min(most, max(least, self._allocated))))
        except (OSError, SpoolFull) as error:
            if isinstance(error, OSError) and error.errno not in _FULL:
                raise
            self._grow(end)

    def _grow(self, end: int) -> None:
        size = end - self._allocated
        self._take(size)
        try:
            os.posix_fallocate(self._fd, self._allocated, size)
        except OSError:
            self._give_back(size)
            raise
        self._allocated = end

    def _take(self, size: int) -> None:
        if self._budget is None:
            return
        if self.overdraws:
            self._budget.overdraw(size)
        elif not self._budget.take(size):
            raise SpoolFull(
                f"the feeds in {self._directory} on {socket.gethostname()} may use {_megabytes(self._budget.limit)} "
                f"together, and hold {_megabytes(self._budget.used)}: allow more with --spool-gb"
            )

    def _give_back(self, size: int) -> None:
        if self._budget is not None:
            self._budget.give(size)

    def _close_when_idle(self) -> None:
        # A number closed under a writer could by then be another file's: the last one out closes.
        if self._closed and not self._writers and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._give_back(self._allocated)

    def _write_error(self, error: OSError, needed: int) -> FeedError:
        where = f"in {self._directory} on {socket.gethostname()}"
        if error.errno not in _FULL:
            return FeedError(f"the feed cannot be written {where}: {error.strerror}; check that disk")
        disk = os.statvfs(self._directory)
        return DiskFull(
            f"no space left for the feed {where} ({error.strerror}): the next rows need {_megabytes(needed)}, "
            f"{_megabytes(disk.f_bavail * disk.f_frsize)} are free and the feed holds {_megabytes(self._end)}. Free "
            "some, feed fewer columns or rows, or point spark.local.dir elsewhere"
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _open_nameless(directory: str) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise _cannot_open(directory, error) from error
    try:
        fd, name = tempfile.mkstemp(prefix="tfos-spool-", dir=directory)
        os.unlink(name)
    except OSError as error:
        raise _cannot_open(directory, error) from error
    return fd


def _cannot_open(directory: str, error: OSError) -> FeedError:
    return FeedError(
        f"cannot create a spool file in {directory}: {error.strerror}; point spark.local.dir at a writable directory"
    )


def _write_all(fd: int, view: memoryview, offset: int) -> None:
    while view.nbytes:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
