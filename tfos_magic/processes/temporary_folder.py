"""A temporary folder that is gone with this process, however it goes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator

REMOVAL_SECONDS = 5.0
MADE_SECONDS = 10.0
_OURS = re.compile(r"tfos-(feed|files|logs|shared|trainer)-\w+")


class PrivateFolder:
    """A folder that only this user can enter, at ``path`` in the system's temporary directory, or ``within`` another.

    ``also`` is another one, made if it is not there, that goes with it. A shell of a few hundred kilobytes waits at the
    end of a pipe and removes both when the pipe closes, which the system does after ``kill -9`` too. Locks on them tell
    :func:`left_behind` that they are in use. Raises ``OSError`` where there is no room for a folder.
    """

    def __init__(self, prefix: str, also: str = "", within: str | None = None) -> None:
        self.path = tempfile.mkdtemp(prefix=prefix, dir=within)
        if also:
            os.makedirs(also, mode=0o700, exist_ok=True)
        folders = [self.path, *([also] if also else [])]
        self._remover: subprocess.Popen[bytes] | None = _remover_of(*folders)
        self._locks: list[int] = []
        with contextlib.suppress(OSError):  # where the file system knows no locks, nobody takes it for left behind
            self._locks += [_locked(folder, fcntl.LOCK_SH) for folder in folders]

    def close(self) -> None:
        """Remove it with what is in it; waits five seconds at most, after which removal goes on by itself."""
        remover, self._remover = self._remover, None
        if remover is None:
            return
        assert remover.stdin is not None
        remover.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            remover.wait(REMOVAL_SECONDS)
        for lock in self._locks:
            os.close(lock)


class LateFolder:
    """A :class:`PrivateFolder` that is made when it is first asked for. Safe to use from several threads."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        self._made: PrivateFolder | None = None

    def path(self) -> str:
        """Raises ``OSError`` where there is no room for a folder."""
        with self._lock:
            if self._made is None:
                self._made = PrivateFolder(self._prefix)
            return self._made.path

    def close(self) -> None:
        """Remove it with what is in it, if it was made."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            made.close()


def left_behind() -> list[str]:
    """Folders of ours and of this user that nobody has any more: whoever waited to remove them was killed as well."""
    return [path for folder in {tempfile.gettempdir(), "/tmp"} for path in _unused_in(folder)]


def remove(paths: list[str]) -> int:
    """Remove folders that nobody has; gives how many are gone."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    return sum(not os.path.exists(path) for path in paths)


def _unused_in(folder: str) -> Iterator[str]:
    for entry in os.scandir(folder):
        if not _OURS.fullmatch(entry.name):
            continue
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and status.st_mode & 0o777 == 0o700
            if ours and time.time() - status.st_ctime > MADE_SECONDS:
                os.close(_locked(entry.path, fcntl.LOCK_EX))
                yield entry.path


def _locked(folder: str, kind: int) -> int:
    """A descriptor that holds a lock of ``folder`` until it is closed. Raises ``OSError`` where it cannot be had."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remover_of(*folders: str) -> subprocess.Popen[bytes]:
    """Wait for the pipe in a session of its own, so that no signal for this process's group ends it."""
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; exec rm -rf -- "$@"', "sh", *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        for folder in folders:
            os.rmdir(folder)
        raise
