"""Folders for what TensorBoard shows: one for each run, named by it, side by side."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tfos_magic.processes.temporary_folder import LateFolder


def run_folder(base: str | Path, name: str) -> str:
    """The folder, not yet made, of a run that is called ``name`` and begins now: runs sort by time below ``base``."""
    folder = time.strftime("%Y%m%d-%H%M%S-") + name.replace(" ", "-").replace(os.sep, "-")
    return str(Path(os.path.expanduser(base)).absolute() / folder)


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
