"""A temporary folder that is gone with this process, however it goes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile

REMOVAL_SECONDS = 5.0


class PrivateFolder:
    """A folder that only this user can enter, at ``path`` in the system's temporary directory.

    A shell of a few hundred kilobytes waits at the end of a pipe and removes the folder when the pipe closes, which the
    system does after ``kill -9`` too. Raises ``OSError`` where there is no room for a folder.
    """

    def __init__(self, prefix: str) -> None:
        self.path = tempfile.mkdtemp(prefix=prefix)
        self._remover: subprocess.Popen[bytes] | None = _remover_of(self.path)

    def close(self) -> None:
        """Remove it with what is in it; waits five seconds at most, after which removal goes on by itself."""
        remover, self._remover = self._remover, None
        if remover is None:
            return
        assert remover.stdin is not None
        remover.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            remover.wait(REMOVAL_SECONDS)


def _remover_of(folder: str) -> subprocess.Popen[bytes]:
    """Wait for the pipe in a session of its own, so that no signal for this process's group ends it."""
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; exec rm -rf -- "$0"', folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        os.rmdir(folder)
        raise
