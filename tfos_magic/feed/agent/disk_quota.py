"""How much of a disk the feeds of one agent may take together."""

from __future__ import annotations

import os
import threading

GIGABYTE = 1 << 30
SPARED_SHARE = 0.05
SPARED_BYTES = GIGABYTE
SMALL_DISK_SHARE = 0.25


class DiskQuota:
    """Bytes that may be taken of the disk of ``directory``: ``limit``, or half of what is free. Thread-safe.

    Of what is free, what these feeds hold already counts as free, so that the answer does not change as they grow. The
    last 5 % of the disk or its last GB, whichever is more, is never taken, whatever the limit; of a disk so small that
    this would be most of it, a quarter.
    """

    def __init__(self, directory: str, limit: int | None = None) -> None:
        self._directory, self._limit = directory, limit
        self._lock = threading.Lock()
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        return self._used

    @property
    def limit(self) -> int:
        """Bytes that may be taken at this moment, those that are taken included."""
        disk = os.statvfs(self._directory)
        free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        spared = max(SPARED_SHARE * total, min(SPARED_BYTES, SMALL_DISK_SHARE * total))
        allowed = (free + self._used) // 2 if self._limit is None else self._limit
        return max(0, min(allowed, int(free + self._used - spared)))

    def take(self, size: int) -> bool:
        """Take ``size`` bytes; False, and nothing taken, where they are not left."""
        with self._lock:
            if self._used + size > self.limit:
                return False
            self._used += size
            return True

    def overdraw(self, size: int) -> None:
        """Take ``size`` bytes that must be had."""
        with self._lock:
            self._used += size

    def give(self, size: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._used -= size
