"""Folders for what TensorBoard shows: one for each run, named by it, side by side."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tfos_magic.errors import UsageError
from tfos_magic.processes.temporary_folder import LateFolder


def run_folder(base: str | Path, name: str) -> str:
    """The folder, not yet made, of a run that is called ``name`` and begins now: runs sort by time below ``base``."""
    folder = time.strftime("%Y%m%d-%H%M%S-") + name.replace(" ", "-").replace(os.sep, "-")
    return str(local_path(str(base)) / folder)


def is_elsewhere(log_dir: str) -> bool:
    """Whether it is a URL such as ``gs://``, of what is not on this machine."""
    return "://" in log_dir.removeprefix("file://")


def local_path(log_dir: str) -> Path:
    """The folder that a path or ``file:`` URL names. Raises :class:`~tfos_magic.errors.UsageError` for other URLs."""
    path = log_dir.removeprefix("file://").removeprefix("file:")
    if is_elsewhere(log_dir):
        raise UsageError(f"log directory {log_dir!r} is not on this machine: give a local path, such as ./logs/run1")
    return Path(path).expanduser().absolute()


class PrivateLogs:
    """Folders of runs that were given none, in a temporary one that is gone with this process, however it goes.

    That one is made with the first folder. Safe to call from several threads.
    """

    def __init__(self) -> None:
        self._base = LateFolder("tfos-logs-")

    def folder(self, name: str) -> str:
        """The folder, not yet made, of a run called ``name``. Raises ``OSError`` where there is no room for any."""
        return run_folder(self._base.path(), name)

    def close(self) -> None:
        """Remove them all."""
        self._base.close()
