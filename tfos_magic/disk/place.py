"""Where the notebook works, told so that a worker knows whether it is on the same disk."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from tfos_magic.this_host import host_id


def tell_place(temporary: str) -> dict[str, Any]:
    """This process's working directory and import path, and ``temporary``, its folder for files of cells."""
    directory = os.getcwd()
    return {
        "host": _host(),
        "directory": directory,
        "mark": _mark(directory),
        "temporary": temporary,
        "path": [os.path.abspath(path or directory) for path in sys.path],
    }


def is_here(place: dict[str, Any]) -> bool:
    """Whether the directory of :func:`tell_place` is the same here, on the same host, and may be entered."""
    directory = place.get("directory", "")
    if not directory or place["host"] != _host() or place["mark"] != _mark(directory):
        return False
    return os.access(directory, os.R_OK | os.X_OK)


def _host() -> str:
    """This start of this machine, or what is like no other where the system does not tell."""
    return host_id() or f"process {os.getpid()}"


def _mark(directory: str) -> list[int]:
    with suppress(OSError):
        status = os.stat(directory)
        return [status.st_dev, status.st_ino]
    return []
