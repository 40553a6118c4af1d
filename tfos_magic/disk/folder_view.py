"""What a rank sees of folders that rank 0 writes to at the same time: what was there when its cell began, and its own.

Where this process may mount, an overlay on a copy covers each folder at its own path. Elsewhere the working directory
alone is a copy, at another path.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tfos_magic.disk import mounts
from tfos_magic.disk.folder_snapshot import COPIED_BYTES, TOTAL_BYTES, Snapshot
from tfos_magic.disk.links import guarded
from tfos_magic.disk.renames import renames_across_mounts

TEMPORARY = "/tmp"  # of which all programs of a host think alike
MOST, MOST_ELSEWHERE, MOST_BESIDE = 2000, 300, 1000
"""How many names of the working directory, of another folder, and of a working directory on disk, are copied."""


_TEMPORARIES = (TEMPORARY, "/var/tmp", tempfile.gettempdir())

_LISTDIR = os.listdir  # which a cell's may be another than
_left: list[str] = []


@dataclass(frozen=True)
class SnapshotView:
    """The ``snapshots`` that stand for folders since ``opened`` (ns since the epoch, by the disk's clock).

    ``directory`` is the working one; ``folders`` are those below which this process's files are its own. ``covers``
    says whether the folders are at their own paths; what is written to them is in ``layers`` then.
    """

    snapshots: Sequence[Snapshot]
    directory: str
    folders: Sequence[str]
    opened: int
    covers: bool
    layers: str = ""

    def owns(self, path: str) -> bool:
        """Whether a file that this process writes to ``path`` is its own."""
        if "://" in path:
            return False
        real = os.path.join(os.path.realpath(os.path.expanduser(path)), "")
        return real.startswith(tuple(os.path.join(folder, "") for folder in self.folders))

    def has_written(self) -> bool:
        """Whether this process has written to the folders, but for hidden files and compiled modules at their tops."""
        written = (
            [f"{self.layers}/{layer}/upper" for layer in _LISTDIR(self.layers)] if self.covers else [self.directory]
        )
        return any(
            _newer(os.path.join(folder, name), self.opened)
            for folder in written
            for name in _LISTDIR(folder)
            if not name.startswith((".", "__pycache__"))
        )

    def refresh(self) -> None:
        """Take over files that came to the folders, or changed there, and that this process did not write itself."""
        for snapshot in self.snapshots:
            for folder, names, files in os.walk(snapshot.origin):
                inner = os.path.relpath(folder, snapshot.origin)
                names[:] = [name for name in names if os.path.normpath(os.path.join(inner, name)) not in snapshot.apart]
                for name in [*names, *files]:
                    self._renew(os.path.join(folder, name), os.path.join(self._place(snapshot), inner, name))

    def order_of(self, folder: str) -> list[str]:
        """The names that the original of a folder, given by its absolute path, had and has, in its order."""
        within = [(place, each) for each in self.snapshots if _holds(place := self._place(each), folder)]
        if not within:
            return []
        place, snapshot = max(within, key=lambda pair: len(pair[0]))
        inner = os.path.relpath(folder, place)
        known, now = snapshot.order.get("" if inner == "." else inner, []), []
        with contextlib.suppress(OSError):  # a folder of this process alone
            now = _LISTDIR(os.path.join(snapshot.origin, inner))
        return list(dict.fromkeys([*known, *now]))

    def _place(self, snapshot: Snapshot) -> str:
        return snapshot.source if self.covers else snapshot.target

    def _renew(self, theirs: str, mine: str) -> None:
        with contextlib.suppress(FileNotFoundError, PermissionError):  # gone since it was listed, or another user's
            status = os.lstat(theirs)
            if os.path.isdir(theirs):
                if status.st_ctime_ns >= self.opened and not os.path.lexists(mine):
                    os.makedirs(mine, exist_ok=True)
            elif _has_content(status) and status.st_ctime_ns >= self.opened and not _newer(mine, self.opened):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(mine)
                if status.st_size > COPIED_BYTES:
                    os.symlink(theirs, mine)
                else:
                    shutil.copy2(theirs, mine)


def _holds(folder: str, path: str) -> bool:
    return os.path.join(path, "").startswith(os.path.join(folder, ""))


def _has_content(status: os.stat_result) -> bool:
    """Whether it is a file, or a link to one: sockets and pipes are of the process that made them."""
    return stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)


def _newer(path: str, moment: int) -> bool:
    try:
        return os.lstat(path).st_ctime_ns > moment
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def mounted(
    directory: str, places: Sequence[str], kept: Sequence[str], elsewhere: Callable[[str], None]
) -> Iterator[SnapshotView]:
    """Cover ``directory`` and ``places`` until the block ends, but for the folders ``kept``.

    Large copies, and what is written, are in the first of these; ``elsewhere`` hears of writing outside of all. Raises
    ``OSError`` where that cannot be.
    """
    with ExitStack() as stack:
        room = _held(stack, stack.enter_context(_room(kept[0])))
        for name in ("names", "links", "layers"):
            os.mkdir(f"{room}/{name}")
        # Names are made in memory, which is a hundred times quicker; what has size is on the disk.
        mounts.memory(f"{room}/names", 2 * TOTAL_BYTES)
        stack.callback(mounts.detach, f"{room}/names")
        folders = {os.path.realpath(folder): _held(stack, folder) for folder in kept if folder}
        known = sorted({os.path.realpath(place) for place in (directory, *places) if os.path.isdir(place)} - {"/"})
        snapshots = [
            _taken(
                stack,
                place,
                room,
                MOST if place == directory else MOST_ELSEWHERE,
                [*known, *folders],
                engines=_has_engines(place, directory),
            )
            for place in known
        ]
        opened = _now(f"{room}/layers")
        for snapshot in snapshots:
            _cover(stack, snapshot, room)
        for folder, origin in folders.items():
            mounts.bind(origin, folder)
            stack.callback(mounts.detach, folder)
        stack.enter_context(guarded(known, elsewhere, links=any(snapshot.pointing for snapshot in snapshots)))
        stack.enter_context(renames_across_mounts())
        yield SnapshotView(snapshots, directory, known, opened, covers=True, layers=f"{room}/layers")


@contextlib.contextmanager
def copied(directory: str, parent: str, elsewhere: Callable[[str], None]) -> Iterator[SnapshotView]:
    """Give a copy of ``directory`` in ``parent`` until the block ends; ``elsewhere`` hears of writing outside of it."""
    with ExitStack() as stack:
        target = stack.enter_context(_room(parent))
        place = os.path.realpath(directory)
        snapshot = Snapshot(place, _held(stack, place), target, target, MOST_BESIDE, _has_engines(place, place)).take(
            [parent]
        )
        inner = os.listdir(place) if "" in snapshot.live else snapshot.apart
        for name in inner:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(os.path.join(target, name))
            os.symlink(os.path.join(snapshot.origin, name), os.path.join(target, name))
        stack.enter_context(guarded([os.path.realpath(parent)], elsewhere))
        yield SnapshotView([snapshot], target, [os.path.realpath(parent)], _now(parent), covers=False)


@contextlib.contextmanager
def _room(parent: str) -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="view-", dir=parent)
    try:
        yield folder
    finally:
        _left.append(folder)


def tidy() -> None:
    """Remove what views that are closed have left."""
    while _left:
        shutil.rmtree(_left.pop(), ignore_errors=True)


def _has_engines(place: str, directory: str) -> bool:
    """Whether engines may keep folders in ``place``: not beside a notebook, where a name like theirs is the user's."""
    own = os.path.realpath(directory)
    return place not in (own, os.path.dirname(own)) or place in map(os.path.realpath, _TEMPORARIES)


def _taken(stack: ExitStack, place: str, room: str, most: int, others: Sequence[str], *, engines: bool) -> Snapshot:
    target = tempfile.mkdtemp(dir=f"{room}/names")
    os.chmod(target, os.stat(place).st_mode & 0o7777 | 0o700)
    links = f"{room}/links/{os.path.basename(target)}"
    return Snapshot(place, _held(stack, place), target, links, most, engines).take(others)


def _held(stack: ExitStack, folder: str) -> str:
    """A path of ``folder`` that it keeps until ``stack`` closes, whatever covers its own."""
    number = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, number)
    return f"/proc/{os.getpid()}/fd/{number}"


def _cover(stack: ExitStack, snapshot: Snapshot, room: str) -> None:
    """Put the copy over its folder, and into it, each by itself, folders that it does not hold."""
    if snapshot.source == TEMPORARY:  # large folders there are rarely the cell's, and there may be many
        snapshot.shared |= snapshot.live - {""}
        snapshot.live &= {""}
    shared, live = (
        {name: _held(stack, os.path.join(snapshot.origin, name)) for name in names}
        for names in (snapshot.shared, snapshot.live)
    )
    lowers = [snapshot.target, *([snapshot.links] if os.path.isdir(snapshot.links) else [])]
    _overlay([live.pop("")] if "" in live else lowers, snapshot.source, room)
    stack.callback(mounts.detach, snapshot.source)
    for name, origin in live.items():
        _overlay([origin], os.path.join(snapshot.source, name), room)
    for name, origin in shared.items():
        mounts.bind(origin, os.path.join(snapshot.source, name))


def _overlay(lowers: Sequence[str], target: str, room: str) -> None:
    layer = tempfile.mkdtemp(dir=f"{room}/layers")
    upper, work = f"{layer}/upper", f"{layer}/work"
    for folder in (upper, work):
        os.mkdir(folder)
    os.chmod(upper, os.stat(lowers[0]).st_mode & 0o7777)
    mounts.overlay(":".join(lowers), upper, work, target)


def _now(folder: str) -> int:
    """The time as the disk of ``folder`` has it, which may be some milliseconds behind the system's."""
    probe = tempfile.mkdtemp(dir=folder)
    try:
        return os.stat(probe).st_ctime_ns
    finally:
        os.rmdir(probe)
