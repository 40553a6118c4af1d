"""The connection between Spark and the Python worker that an agent runs in: once it is cut, the task is over."""

from __future__ import annotations

import os
import select
import stat
from collections import Counter


class SparkLiveness:
    """Spark's end of this worker's socket. Make it before this process opens sockets of its own.

    Spark hangs up (SIGHUP) on all Python workers of an executor when it begins their daemon anew, as it does when a
    task is cancelled at the moment in which its worker is being made; tasks of the other workers go on all the same. So
    the signal says nothing, and the connection does. ``known`` is false where it cannot be told from other sockets.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        fd = _spark_socket()
        self.known = fd is not None
        if fd is not None:
            self._poll.register(fd, select.POLLRDHUP)

    @property
    def cut(self) -> bool:
        """Whether Spark has closed the connection."""
        return bool(self._poll.poll(0))


def _spark_socket() -> int | None:
    """The socket of which there are several descriptors: Spark's worker makes one to read and one to write."""
    sockets = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            status = os.fstat(fd)
        except OSError:  # that of the listing itself
            continue
        if stat.S_ISSOCK(status.st_mode):
            sockets[fd] = status.st_ino
    shared = [inode for inode, count in Counter(sockets.values()).items() if count > 1]
    return next(fd for fd, inode in sockets.items() if inode == shared[0]) if len(shared) == 1 else None


class ExecutorLiveness:
    """Whether the process of the executor with ``pid`` has ended: what an agent has that has left its task."""

    known = True

    def __init__(self, pid: int) -> None:
        self._poll = select.poll()
        self._poll.register(os.pidfd_open(pid), select.POLLIN)

    @property
    def cut(self) -> bool:
        return bool(self._poll.poll(0))
