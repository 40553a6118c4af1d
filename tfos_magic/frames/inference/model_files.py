"""Where a model's files are, and which version of them is there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tfos_magic.errors import UsageError
from tfos_magic.storage import is_local, open_system


def version_of(path: str) -> str:
    """What changes when a file, or any file of a folder, is replaced: names, sizes and times, as its file system has.

    Empty where nothing is there. Raises :class:`UsageError` for a URL that fsspec cannot open.
    """
    system, root = _system(path)
    if is_local(system):
        files = (
            [root] if os.path.isfile(root) else [os.path.join(at, name) for at, _, ns in os.walk(root) for name in ns]
        )
        return repr(sorted((name, _stamp(os.stat(name))) for name in files))
    system.invalidate_cache()
    return repr(sorted((name, str(info)) for name, info in system.find(root, detail=True).items()))


@contextmanager
def local_copy(path: str) -> Iterator[str]:
    """The path itself, or for a URL a copy on this machine that is deleted afterwards."""
    system, root = _system(path)
    if is_local(system):
        yield root
        return
    with tempfile.TemporaryDirectory(prefix="tfos-model-") as folder:
        copy = os.path.join(folder, Path(root).name)
        system.get(root, copy, recursive=True)
        yield copy


def _system(path: str) -> tuple[Any, str]:
    try:
        return open_system(path)
    except (ImportError, ValueError) as error:
        raise UsageError(f"the model at {path} cannot be read: {error}") from None


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
