"""A temporary folder that is gone with this process, however it goes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading

REMOVAL_SECONDS = 5.0


class PrivateFolder:
    """A folder that only this user can enter, at ``path`` in the system's temporary directory, or ``within`` another.

    ``also`` is another one, made if it is not there, that goes with it. A shell of a few hundred kilobytes waits at the
    end of a pipe and removes both when the pipe closes, which the system does after ``kill -9`` too. Raises ``OSError``
    where there is no room for a folder.
    """

    def __init__(self, prefix: str, also: str = "", within: str | None = None) -> None:
        self.path = tempfile.mkdtemp(prefix=prefix, dir=within)
        if also:
            os.makedirs(also, mode=0o700, exist_ok=True)
        self._remover: subprocess.Popen[bytes] | None = _remover_of(self.path, *([also] if also else []))

    def close(self) -> None:
        """Remove it with what is in it; waits five seconds at most, after which removal goes on by itself."""
        remover, self._remover = self._remover, None
        if remover is None:
            return
        assert remover.stdin is not None
        remover.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            remover.wait(REMOVAL_SECONDS)


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
