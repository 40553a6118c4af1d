"""Checkpoint files on whatever file system fsspec opens: their names, their folders, which of them go."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tfos_magic.checkpoints.checkpoint import Damaged, Position
from tfos_magic.errors import ClusterError, DataError
from tfos_magic.storage import (
    SEE_THE_STORE,
    forget_system,
    is_local,
    make_folder,
    open_remedy,
    open_system,
    without_password,
)

ENDS_BYTES = 1 << 30
_RUN = re.compile(r"run-\d{8}-\d{6}-\d{6}-[0-9a-f]{4}")
_FILE = re.compile(r"(\d{6,})-fit(\d+)-(end|epoch\d+-step(\d+))\.npz")
_PARTIAL = ".partial"
_MARK = ".alive"


@dataclass(frozen=True)
class Entry:
    """A checkpoint file. ``sequence`` counts the files of its run; ``complete`` and ``step`` are
    those of its position."""

    path: str
    sequence: int
    fit: int
    complete: bool
    bytes: int
    step: int = 0

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class CheckpointFiles:
    """The files of one run, in a folder ``run-<UTC time>`` below ``where``, a path or URL.

    Every method raises :class:`ClusterError` that names the path and what to do, when the file system refuses.
    """

    def __init__(self, where: str, keep: int) -> None:
        self.where = without_password(where)
        self._keep = keep
        with self._refusing("open"):
            self._system, self._root = open_system(where)
        self._is_local = is_local(self._system)
        self.new_run()
        self._probe()

    def new_run(self) -> None:
        """Begin a folder of its own; it is made when its first file is written."""
        now = time.time()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now)) + f"-{int(now % 1 * 1e6):06d}"
        self.open_run(f"run-{stamp}-{secrets.token_hex(2)}")

    def open_run(self, run: str) -> None:
        """Go on in the folder of an earlier run, which may have been killed while it wrote."""
        self.run, self._folder = run, f"{self._root}/{run}"
        for name, _ in self._list(self._folder):
            if name.endswith(_PARTIAL):
                with self._refusing("write to"):
                    self._system.rm_file(f"{self._folder}/{name}")
        self._sequence = max((entry.sequence for entry in self.entries()), default=-1) + 1

    def runs(self) -> list[str]:
        """The runs that left a folder, the newest first."""
        return sorted((name for name, _ in self._list(self._root) if _RUN.fullmatch(name)), reverse=True)

    def entries(self) -> list[Entry]:
        """The checkpoints of this run, the newest last."""
        entries = []
        for name, size in self._list(self._folder):
            if match := _FILE.fullmatch(name):
                path = f"{self._folder}/{name}"
                complete, step = match[3] == "end", int(match[4] or 0)
                entries.append(Entry(path, int(match[1]), int(match[2]), complete, size, step))
        return sorted(entries, key=lambda entry: entry.sequence)

    def read(self, entry: Entry) -> bytes:
        """The bytes of a checkpoint. Raises :class:`Damaged` when it cannot be read."""
        try:
            if self._is_local and not os.path.isfile(entry.path):  # a pipe would be waited for
                raise Damaged("it is no file")
            with self._system.open(entry.path, "rb") as file:
                return bytes(file.read())
        except Damaged:
            raise
        except Exception as error:  # each file system has errors of its own
            raise Damaged(f"{type(error).__name__}: {error}") from None

    def write(self, position: Position, data: bytes) -> None:
        """Write a checkpoint under a name that it gets only when it is whole, then let old ones go."""
        with self._refusing("write to"):
            self._make_folder(self._folder)
            self._write(f"{self._folder}/{self._sequence:06d}-{position.label}.npz", data)
            self._sequence += 1
            for entry in superfluous(self.entries(), self._keep):
                self._system.rm_file(entry.path)

    def close(self) -> None:
        """Nothing is open; the files stay."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other process of this host do the same with this directory meanwhile, where the disk is its own."""
        if not self._is_local:
            yield
            return
        folder = os.open(self._root, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # not every network's disk can
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def read_mark(self, run: str) -> bytes:
        """The mark of who goes on in the folder of ``run``; empty where nobody does."""
        with self._refusing("read"):
            try:
                return bytes(self._system.cat_file(f"{self._root}/{run}{_MARK}"))
            except FileNotFoundError:
                return b""

    def write_mark(self, run: str, data: bytes) -> None:
        """Put another mark in its place, in one piece."""
        with self._refusing("write to"):
            if self._is_local:
                self._write(f"{self._root}/{run}{_MARK}", data)
            else:
                self._system.pipe_file(f"{self._root}/{run}{_MARK}", data)

    def drop_mark(self, run: str) -> None:
        """Take the mark away."""
        with self._refusing("write to"):
            self._system.rm_file(f"{self._root}/{run}{_MARK}")

    def _probe(self) -> None:
        """Find out now, not after the first epoch, whether files can be written."""
        with self._refusing("write to"):
            self._make_folder(self._root)
            probe = f"{self._root}/.tfos-probe-{secrets.token_hex(4)}"
            self._write(probe, b"probe")
            self._system.rm_file(probe)

    def _write(self, path: str, data: bytes) -> None:
        partial = f"{path}.{secrets.token_hex(4)}{_PARTIAL}"  # two processes may write the mark of one run
        try:
            with self._system.open(partial, "wb") as file:
                if self._is_local:
                    os.chmod(partial, 0o600)
                file.write(data)
                if self._is_local:
                    file.flush()
                    os.fsync(file.fileno())
            self._system.mv(partial, path)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to tell
                self._system.rm_file(partial)
            raise

    def _make_folder(self, path: str) -> None:
        if self._is_local:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        else:
            make_folder(self._system, path)

    def _list(self, folder: str) -> Iterator[tuple[str, int]]:
        """Names and sizes of what is in a folder; nothing when there is no such folder."""
        with self._refusing("list"):
            try:
                self._system.invalidate_cache()
                infos = self._system.ls(folder, detail=True)
            except FileNotFoundError:
                return
        for info in infos:
            yield str(info["name"]).rstrip("/").rpartition("/")[2], int(info.get("size") or 0)

    @contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        """Tell any refusal of a file system as one error with the path and the remedy."""
        try:
            yield
        except ClusterError:
            raise
        except Exception as error:  # every file system, and every client library, has errors of its own
            if hasattr(self, "_system"):
                forget_system(self._system)
            reason = str(error).strip() or type(error).__name__
            remedy = _remedy(error, what, "://" in self.where)
            told = f"Cannot {what} the checkpoint directory {self.where!r}: {reason.rstrip('.')}. {remedy}"
            raise ClusterError(told.rstrip()) from error


def superfluous(entries: list[Entry], keep: int) -> list[Entry]:
    """Which files may go: all but the last ``keep``, the last of an epoch's beginning, and the last of each fit that is
    over.

    Those of fits let a resumed run give back what finished fits gave, without training. Together they may take
    ``ENDS_BYTES``, or as much as ``keep`` files like the newest; beyond that the oldest go, and their fits would be
    trained anew. The one of an epoch's beginning is for a run that goes on with other rows.
    """
    if not entries:
        return []
    last, older = entries[-keep:], entries[:-keep]
    budget = max(ENDS_BYTES, keep * entries[-1].bytes)
    ended = {entry.fit for entry in last if entry.complete}
    beginning = next((entry for entry in reversed(entries) if not entry.step), None)
    going = []
    for entry in reversed(older):
        if entry.complete and entry.fit not in ended and entry.bytes <= budget:
            ended.add(entry.fit)
            budget -= entry.bytes
        elif entry is not beginning:
            going.append(entry)
    return going


def _remedy(error: Exception, what: str, of_store: bool) -> str:
    match error:
        case ImportError():
            return "Install the package that fsspec names, in the kernel's environment, and restart the kernel."
        case DataError():
            return ""  # which says it itself
        case PermissionError() if of_store:
            return f"See that the credentials are right, and give a directory that you may {what}."
        case PermissionError():
            return f"Give a directory that you may {what}."
        case ValueError():
            return f"{open_remedy(error)}."
        case _ if of_store:
            return f"{SEE_THE_STORE}."
        case _:
            return "Give a directory that can be written to, with room for a copy of the model and its optimizer."
