"""The event files of rank 0's cell, written again beside the kernel, where TensorBoard reads them."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.tensorboard.log_folders import local_path
from tfos_magic.transport.messages import EventFilePart
from tfos_magic.transport.messages.events import EVENT_FILE_BYTES, EVENT_RUN_BYTES

FILES, PATH_CHARACTERS = 10_000, 1000


class PartRefused(Exception):
    """A part that has no place in the run's folder."""


class EventMirror:
    """Keeps a run's copies below ``state.log_dir``, readable by the user alone.

    Where the run has no log directory, ``private`` makes one for a run of this name when the first part comes. A file
    that this machine sees under its own name, in the folder of all runs, has no copy: its curves would be there twice.

    Whatever a worker sends, no more is kept than ``FILES`` files with ``EVENT_FILE_BYTES`` each and ``EVENT_RUN_BYTES``
    in all.
    """

    def __init__(self, state: RunState, private: Callable[[str], str] | None = None) -> None:
        self._state, self._private = state, private
        self._seen: dict[str, bool] = {}
        self._sizes: Counter[str] = Counter()
        self._failed = False

    @property
    def has_place(self) -> bool:
        """Whether there is a place for event files."""
        return bool(self._state.log_dir) or self._private is not None

    def take(self, part: EventFilePart) -> None:
        """Write a part to its place. What comes twice changes nothing; what cannot be kept is said once."""
        if self._failed or not self.has_place:
            return
        try:
            root, names = self._root(), parts_of(part.path)
            if part.path not in self._seen:
                self._check_count()
                self._seen[part.path] = _is_below(part.origin, root.parent)
            if not self._seen[part.path]:
                self._check_size(part)
                write_part(root, names, part.offset, part.payload)
                self._sizes[part.path] = max(self._sizes[part.path], part.offset + len(part.payload))
        except (OSError, PartRefused) as error:
            self._failed = True
            reason = error.strerror if isinstance(error, OSError) else str(error)
            name = part.path[:PATH_CHARACTERS]
            self._state.notices.append(
                f"The cell's event files for TensorBoard are no longer copied: {name}: {reason}."
            )

    def _check_count(self) -> None:
        if len(self._seen) >= FILES:
            raise PartRefused(f"it is one more than {FILES} files, which are the most of a run")

    def _check_size(self, part: EventFilePart) -> None:
        size = part.offset + len(part.payload)
        if size > EVENT_FILE_BYTES:
            raise PartRefused(f"it has more than {EVENT_FILE_BYTES >> 20} MB, which are the most of one file")
        if self._sizes.total() + max(0, size - self._sizes[part.path]) > EVENT_RUN_BYTES:
            raise PartRefused(f"the run's files have more than {EVENT_RUN_BYTES >> 20} MB, which are the most of a run")

    def _root(self) -> Path:
        if not self._state.log_dir and self._private is not None:
            self._state.log_dir = self._private(self._state.name)
            self._state.notices.append("%tfos tensorboard shows what the cell writes for it, until the kernel ends.")
        return local_path(self._state.log_dir)


def write_part(root: Path, names: tuple[str, ...], offset: int, data: bytes) -> None:
    """Write ``data`` at ``offset`` of the file ``names`` below ``root``. Raises :class:`PartRefused` and ``OSError``.

    No link is followed on the way, so that nothing is written outside of ``root``.
    """
    *folders, name = names
    root.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        at = _opened(stack, root, os.O_RDONLY | os.O_DIRECTORY)
        for folder in folders:
            if not _exists(folder, at):
                os.mkdir(folder, 0o700, dir_fd=at)
            at = _opened(stack, folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, at)
        file = _opened(stack, name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, at)
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise PartRefused("it is not a file")
        if offset > status.st_size:
            raise PartRefused(f"bytes {status.st_size} to {offset} of it are missing")
        _write(file, data, offset)


def parts_of(path: str) -> tuple[str, ...]:
    """The names that ``path`` is made of. Raises :class:`PartRefused` where it is no event file's below a folder."""
    names = PurePosixPath(path).parts
    if len(path) > PATH_CHARACTERS:
        raise PartRefused(f"its path has more than {PATH_CHARACTERS} characters")
    if not names or path.startswith("/") or ".." in names or "\0" in path or "tfevents" not in names[-1]:
        raise PartRefused("it is not an event file of the run's own folder")
    return names


def _opened(stack: ExitStack, name: str | Path, flags: int, at: int | None = None) -> int:
    opened = os.open(name, flags | os.O_CLOEXEC, 0o600, dir_fd=at)
    stack.callback(os.close, opened)
    return opened


def _exists(name: str, at: int) -> bool:
    try:
        os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _write(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def _is_below(origin: str, folder: Path) -> bool:
    """Whether a worker's file is seen here too, below ``folder``. The names of event files are unique."""
    path = Path(os.path.realpath(origin.replace("\0", "")))
    return path.is_relative_to(os.path.realpath(folder)) and path.is_file()
