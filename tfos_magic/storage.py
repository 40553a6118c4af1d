"""File systems by path or URL: whatever fsspec opens."""

from __future__ import annotations

import os
from typing import Any


def open_system(where: str) -> tuple[Any, str]:
    """The fsspec file system of a path or URL, and the path on it, without a slash at its end.

    A path without a scheme is of this machine. Raises what fsspec raises: ``ImportError`` for a scheme whose package
    is missing, ``ValueError`` for one that it does not know.
    """
    import fsspec  # here, because a kernel that never trains needs none of it

    system, root = fsspec.core.url_to_fs(where if "://" in where else os.path.abspath(os.path.expanduser(where)))
    return system, str(root).rstrip("/")


def is_local(system: Any) -> bool:
    """True for the file system of this machine."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(system, LocalFileSystem)
