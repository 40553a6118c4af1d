"""A trainer's disk while it runs a cell."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress

from tfos_magic.disk import SHARED_VARIABLE
from tfos_magic.disk.folder_view import SnapshotView, copied, mounted, tidy
from tfos_magic.disk.imports import set_states
from tfos_magic.disk.links import guarded
from tfos_magic.disk.listings import listed_as
from tfos_magic.disk.modules import EditedModules, local_modules, write_sources
from tfos_magic.disk.place import is_here
from tfos_magic.transport.messages import RunCell

Downloads = Callable[[str, int, str], AbstractContextManager[None]]


class Disk:
    """The disk of the trainer with ``rank``, one of ``local_size`` on its host, that ``may_mount`` or not.

    Files that it needs by itself are in its temporary folder; what ranks of a host share for a run, in the folder that
    :data:`~tfos_magic.disk.SHARED_VARIABLE` names in its environment. Modules named in ``spared`` are never
    imported anew. ``downloads``, of a folder that the ranks of a host share, their number and a name for what they see
    of the disk, has them download once.
    """

    def __init__(
        self, rank: int, local_size: int, may_mount: bool, spared: Collection[str], downloads: Downloads
    ) -> None:
        self._rank, self._local_size, self._may_mount, self._spared = rank, local_size, may_mount, spared
        self._share_downloads = downloads
        self._private = os.path.realpath(tempfile.gettempdir())
        self._shared = os.environ.get(SHARED_VARIABLE, "")
        self._outside = os.getcwd()
        self._here, self._begun = False, ""
        self._edited = EditedModules(spared)

    @contextmanager
    def opened(self, cell: RunCell, notice: Callable[[str], None]) -> Iterator[SnapshotView | None]:
        """Work where the cell is to work until the block ends; gives the rank's own view, where it has one.

        That is the notebook's directory, if it is on this host. Of ranks that train together, all but rank 0 see copies
        of it and of the folders for temporary files and for Keras's data; rank 0 of a trial, beside which others run
        the same cell, sees a copy of the directory. ``notice`` is told what differs from that.
        """
        self._here = here = is_here(cell.place)
        directory = cell.place["directory"] if here else self._outside
        temporary = (cell.place["temporary"] if here else "") or self._private
        with ExitStack() as stack:
            stack.callback(os.chdir, self._outside)
            view = None
            if (self._rank > 0 or cell.asks) and not cell.apart:
                view = self._view(stack, directory, temporary, notice)
                directory = view.directory
                stack.enter_context(listed_as(view.order_of))
            elif self._local_size > 1 and not cell.apart:
                stack.enter_context(guarded([directory, *_others(directory, temporary)]))  # others have links to files
            stack.enter_context(_temporary(self._private if view and not view.covers else temporary))
            os.chdir(directory)
            self._begun = os.getcwd()
            stack.enter_context(self._downloads(cell.run_id, view))
            self._open_modules(stack, cell, directory)
            try:
                yield view
            finally:
                if self._rank == 0 and view is not None and view.has_written():
                    notice(_WITH_THE_TRIAL)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Where the notebook's directory is not at hand, let the error say so of a relative path that is missing."""
        try:
            yield
        except FileNotFoundError as error:
            if not self._here and isinstance(error.filename, str) and not os.path.isabs(error.filename):
                error.strerror = (
                    f"{error.strerror} (worker {self._rank} is not on the notebook's host, or may not enter its "
                    "directory, so relative paths are those of its executor: put files where all workers see them, and "
                    "give their absolute path)"
                )
            raise

    def moved(self) -> str:
        """The directory that the cell went to on the notebook's disk; empty where it stayed."""
        with suppress(OSError):  # a directory that is gone
            directory = os.getcwd()
            return directory if self._here and directory != self._begun else ""
        return ""

    def tidy(self) -> None:
        """Remove what is left of views: after the end of a cell was told, for it takes time."""
        tidy()

    def _view(self, stack: ExitStack, directory: str, temporary: str, notice: Callable[[str], None]) -> SnapshotView:
        kept, spared = [self._private, self._shared], [self._shared, _keras_folder()]
        if self._may_mount:
            places = [] if self._rank == 0 else _others(directory, temporary)
            also = [temporary, _keras_folder()] if self._rank == 0 else []
            with suppress(OSError):  # there is no more that such a system allows
                elsewhere = _Elsewhere(self._rank, [*kept, *also], notice, _FOLDERS)
                return stack.enter_context(mounted(directory, places, kept, elsewhere))
        return stack.enter_context(copied(directory, self._private, _Elsewhere(self._rank, spared, notice, _RELATIVE)))

    def _downloads(self, run_id: str, view: SnapshotView | None) -> AbstractContextManager[None]:
        if not self._shared:
            return nullcontext()
        for name in os.listdir(self._shared):
            if name != run_id:  # of a run that has ended
                shutil.rmtree(os.path.join(self._shared, name), ignore_errors=True)
        name = str(self._rank) if view and view.covers else ""
        return self._share_downloads(os.path.join(self._shared, run_id), self._local_size, name)

    def _open_modules(self, stack: ExitStack, cell: RunCell, directory: str) -> None:
        folder, path = directory, cell.place.get("path", [])
        if not self._here:
            folder, path = os.path.join(self._private, "modules"), [directory]
            shutil.rmtree(folder, ignore_errors=True)
            write_sources(cell.sources, folder)
        stack.enter_context(local_modules(folder, path, self._spared))
        stack.enter_context(self._edited.imported_anew(folder, cell.module_states))
        stack.enter_context(set_states(cell.module_states))


_RELATIVE = (
    "it may not mount a view of its own, so that only files with relative paths, and those of tempfile, are apart. "
    "Write relative paths, or"
)
_FOLDERS = (
    "only files below the working directory, the one above it, /tmp, /var/tmp and ~/.keras are apart. Write there, or"
)
_WITH_THE_TRIAL = (
    "Each trial has its own copy of the working directory, and files that it writes there are deleted at its end: "
    "bring values back with -o, or write to a folder elsewhere, under a name that differs from trial to trial."
)
MOST_TOLD = 8


class _Elsewhere:
    """Tells of a file written where all see it, but for folders that are ``spared``; ``which`` are not shared.

    Of a worker it is told once; of a trial, whose rank is 0, once for each folder.
    """

    def __init__(self, rank: int, spared: Sequence[str], notice: Callable[[str], None], which: str) -> None:
        self._rank, self._notice, self._which = rank, notice, which
        self._told: set[str] = set()
        self._spared = tuple(os.path.join(folder, "") for folder in spared if folder)

    def __call__(self, path: str) -> None:
        about = path if self._rank else os.path.dirname(path)
        most = 1 if self._rank else MOST_TOLD
        if about in self._told or len(self._told) == most or path.startswith(self._spared) or _is_of_libraries(path):
            return
        self._told.add(about)
        if self._rank:
            self._notice(
                f"Worker {self._rank} writes {path}, and so do others of its host at the same time: {self._which} "
                "let rank 0 write alone (if tfos.rank() == 0)."
            )
            return
        self._notice(
            f"Trials write to {about}, which those of a host share: give files names that differ from trial to trial, "
            "or relative paths in the working directory, of which each trial has its own copy."
        )


def _is_of_libraries(path: str) -> bool:
    """Whether a file is in a hidden folder or among compiled modules, where libraries keep what they can make anew."""
    return "/." in path or "/__pycache__/" in path


def _others(directory: str, temporary: str) -> list[str]:
    """The folders besides the working one that programs write to; ``temporary`` is where the notebook's own are."""
    parent = os.path.dirname(directory)
    above = [parent] if os.access(parent, os.W_OK) else []
    return [*above, "/tmp", "/var/tmp", _keras_folder(), os.path.dirname(temporary), temporary]


def _keras_folder() -> str:
    return os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")


@contextmanager
def _temporary(folder: str) -> Iterator[None]:
    """Let temporary files of this process, and of what it starts, be made in ``folder``."""
    before = os.environ.get("TMPDIR", folder)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    try:
        yield
    finally:
        os.environ["TMPDIR"] = tempfile.tempdir = before
