"""Folders for what TensorBoard shows: one for each run, named by it, side by side."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

STOP_TIMEOUT = 5.0


def run_folder(base: str | Path, name: str) -> str:
    """The folder, not yet made, of a run that is called ``name`` and begins now: runs sort by time below ``base``."""
    folder = time.strftime("%Y%m%d-%H%M%S-") + name.replace(" ", "-").replace(os.sep, "-")
    return str(Path(os.path.expanduser(base)).absolute() / folder)


class PrivateLogs:
    """Folders of runs that were given none, in a temporary one that is gone with this process, however it goes.

    A shell of a few hundred kilobytes waits at the end of a pipe and removes the folder when the pipe closes, which the
    system does after ``kill -9`` too. It is started with the first folder. Safe to call from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._base = ""
        self._remover: subprocess.Popen[bytes] | None = None

    def folder(self, name: str) -> str:
        """The folder, not yet made, of a run called ``name``. Raises ``OSError`` where there is no room for any."""
        with self._lock:
            if self._remover is None:
                self._base = tempfile.mkdtemp(prefix="tfos-logs-")
                self._remover = _remover_of(self._base)
            return run_folder(self._base, name)

    def close(self) -> None:
        """Remove them all."""
        with self._lock:
            remover, self._remover = self._remover, None
        if remover is None:
            return
        assert remover.stdin is not None
        remover.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it goes on by itself
            remover.wait(STOP_TIMEOUT)


def _remover_of(folder: str) -> subprocess.Popen[bytes]:
    """Wait for the pipe in a session of its own, so that no signal for the kernel's group ends it."""
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
