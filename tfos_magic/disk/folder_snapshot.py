"""A folder as it is now, in little time and room: names and small files are copied, other files linked."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field

MOST_AT_THE_TOP = 5000
COPIED_BYTES = 64 << 10
TOTAL_BYTES = 16 << 20

# What engines beside this one, and this one, keep in temporary folders: for all processes of a host.
_SHARED = ("tfos-", "spark-", "blockmgr-", "pyspark-", ".X11-unix", ".ICE-unix", "hsperfdata_")


@dataclass
class Snapshot:
    """A copy of the folder ``source`` in ``target``: of its own names, and of some ``most`` of those in its folders.

    Small files are copied. Others are linked in the folder ``links``, of the same structure, which
    may be ``target``; those on another disk are symbolic links to ``origin``, a path of ``source`` that stays when
    ``source`` is covered, and ``pointing`` tells of these. Folders with too many names are empty, and ``live`` has
    their paths relative to ``source``; ``shared`` those of the folders that ``engines`` share, where they keep some
    there. ``order`` has the names in each folder, by such a path, as the disk lists them.
    """

    source: str
    origin: str
    target: str
    links: str
    most: int
    engines: bool = True
    live: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    order: dict[str, list[str]] = field(default_factory=dict)
    pointing: bool = False
    _bytes: int = 0

    @property
    def apart(self) -> set[str]:
        """The folders, relative to it, whose entries it does not hold."""
        return self.live | self.shared

    def take(self, others: Collection[str] = ()) -> Snapshot:
        """Copy everything but what is in the folders ``others``, absolute paths, which are only made."""
        folders, names = deque([""]), 0
        while folders:
            folder = folders.popleft()
            entries = _entries(os.path.join(self.source, folder))
            if entries is None:
                self.live.add(folder)
                continue
            names += len(entries) if folder else 0
            if names > self.most or len(entries) > MOST_AT_THE_TOP:
                self._leave_out({folder, *folders}, entries)
                break
            self.order[folder] = [entry.name for entry in entries]
            for entry in entries:
                if self._add(entry, os.path.join(folder, entry.name), others):
                    folders.append(os.path.join(folder, entry.name))
        return self

    def _add(self, entry: os.DirEntry[str], name: str, others: Collection[str]) -> bool:
        """Copy one entry; True for a folder whose entries are to follow."""
        target = os.path.join(self.target, name)
        try:
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
            elif not entry.is_dir():
                self._add_file(entry, name, target)
            else:
                os.mkdir(target)
                os.chmod(target, entry.stat().st_mode & 0o7777 | 0o700)
                if "/" not in name and self._is_shared(entry):
                    self.shared.add(name)
                    return False
                return entry.path not in others
        except FileNotFoundError:
            pass  # gone since the folder was listed
        return False

    def _add_file(self, entry: os.DirEntry[str], name: str, target: str) -> None:
        status = entry.stat()
        if entry.is_file() and status.st_size <= COPIED_BYTES and self._bytes + status.st_size <= TOTAL_BYTES:
            with suppress(PermissionError):
                _copy_small(entry.path, target, status)
                self._bytes += status.st_size
                return
        link = os.path.join(self.links, name)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        try:
            os.link(entry.path, link)
        except FileNotFoundError:
            raise
        except OSError:  # on another disk, or another user's
            os.symlink(os.path.join(self.origin, name), target)
            self.pointing = True

    def _leave_out(self, folders: Collection[str], entries: Collection[os.DirEntry[str]]) -> None:
        """Make the folders at the top that hold ``folders`` empty, as few as these are; or all, whose entries are
        ``entries``."""
        if "" in folders:
            self.live, self.shared = {""}, {entry.name for entry in entries if self._is_shared(entry)}
            return
        tops = {folder.split("/", 1)[0] for folder in folders}
        self.live = {folder for folder in self.live if folder.split("/", 1)[0] not in tops} | tops
        for top in tops:
            for root in {self.target, self.links}:
                shutil.rmtree(os.path.join(root, top), ignore_errors=True)
            os.makedirs(os.path.join(self.target, top), exist_ok=True)

    def _is_shared(self, entry: os.DirEntry[str]) -> bool:
        return self.engines and entry.name.startswith(_SHARED) and entry.is_dir(follow_symlinks=False)


def _copy_small(source: str, target: str, status: os.stat_result) -> None:
    with open(source, "rb") as given, open(target, "wb", buffering=0) as made:
        made.write(given.read())
    os.chmod(target, status.st_mode & 0o7777)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _entries(folder: str) -> list[os.DirEntry[str]] | None:
    """What is in a folder; None where it cannot be read."""
    try:
        with os.scandir(folder) as listing:
            return list(listing)
    except OSError:
        return None
