"""Links to files of others become files of one's own before Python writes to them."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_TRUNC | os.O_CREAT
_NO_FILES = ("/dev/", "/proc/", "/sys/")

_guards: list[_Guard] = []
_installed: list[Callable[..., None]] = []


class _Guard:
    def __init__(self, folders: Sequence[str], elsewhere: Callable[[str], None], links: bool) -> None:
        self._folders = tuple(os.path.join(folder, "") for folder in folders)
        self._elsewhere, self._links = elsewhere, links

    def writes(self, path: str, emptied: bool) -> None:
        if os.path.isdir(path):  # where a file without a name is made, which nobody else can open
            return
        full = os.path.join(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))
        if full.startswith(self._folders):
            if self._links:
                _replace_link(full, emptied)
        elif not full.startswith(_NO_FILES):
            self._elsewhere(full)


@contextlib.contextmanager
def guarded(
    folders: Sequence[str], elsewhere: Callable[[str], None] = lambda path: None, links: bool = True
) -> Iterator[None]:
    """While the block runs, what Python opens for writing below ``folders`` is a file of its own, not a link; so what
    others have linked stays as it was. There may be none: without ``links``.

    ``elsewhere`` is called with each path outside of them that is opened for writing. Libraries in C open files unseen.
    """
    if not _installed:
        _installed.append(_watch)
        sys.addaudithook(_watch)  # which stays: Python has no way to take it back
    _guards.append(_Guard(folders, elsewhere, links))
    try:
        yield
    finally:
        _guards.pop()


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if event != "open" or not _guards:
        return
    path, _, flags = arguments
    if isinstance(flags, int) and flags & _WRITING and isinstance(path, (str, bytes)):
        _guards[-1].writes(os.fsdecode(path), bool(flags & os.O_TRUNC))


def _replace_link(path: str, emptied: bool) -> None:
    """Put a copy in the place of a link, be it symbolic and made by :mod:`snapshot`, or hard; one without the content
    where it is to be ``emptied``."""
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        ours = stat.S_ISLNK(status.st_mode) and os.readlink(path).startswith("/proc/")
        if not ours and not (stat.S_ISREG(status.st_mode) and status.st_nlink > 1):
            return
        copy = f"{path}.tfos-own"
        if emptied:
            os.close(os.open(copy, os.O_CREAT | os.O_EXCL, os.stat(path).st_mode & 0o7777))
        else:
            shutil.copy2(path, copy)
        os.replace(copy, path)
