"""Renaming between folders that lie on one disk, and that a view covers each by itself."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tfos_magic.disk import mounts


@contextmanager
def renames_across_mounts() -> Iterator[None]:
    """Until the block ends, let ``os.rename`` and ``os.replace`` move what the system cannot rename.

    That is a copy then, which is not seen before it is whole, and the removal of what it was made of.
    """
    rename, replace = os.rename, os.replace
    os.rename, os.replace = _moving(rename), _moving(replace)
    try:
        yield
    finally:
        os.rename, os.replace = rename, replace


def _moving(rename: Callable[..., None]) -> Callable[..., None]:
    def renamed(src: Any, dst: Any, **folders: Any) -> None:
        try:
            rename(src, dst, **folders)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EBUSY) or any(folders.values()):
                raise
            _move(os.fsdecode(src), os.fsdecode(dst), rename)

    return renamed


def _move(source: str, target: str, rename: Callable[..., None]) -> None:
    copy = f"{target.rstrip('/')}.tfos-moved"
    if not os.path.isdir(source) or os.path.islink(source):
        shutil.copy2(source, copy, follow_symlinks=False)
        rename(copy, target)
        os.unlink(source)
        return
    shutil.copytree(source, copy, symlinks=True)
    try:
        rename(copy, target)
    except OSError:
        shutil.rmtree(copy)
        raise
    with suppress(OSError):  # it may be covered by itself
        mounts.detach(source)
    shutil.rmtree(source)
