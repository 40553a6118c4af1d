"""Checkpoints of a run that was given no directory: files without a name, gone with the kernel however it goes."""

from __future__ import annotations

import tempfile
from typing import IO

from tfos_magic.checkpoints.checkpoint import Damaged, Position
from tfos_magic.checkpoints.directory import Entry, superfluous
from tfos_magic.errors import ClusterError


class PrivateCheckpoints:
    """The last ``keep`` checkpoints of this run, open files of this process in the system's temporary directory.

    The same methods as :class:`~tfos_magic.checkpoints.directory.CheckpointFiles`, for a run that nobody resumes.
    """

    def __init__(self, keep: int) -> None:
        self.where = tempfile.gettempdir()
        self._keep = keep
        self._files: dict[Entry, IO[bytes]] = {}
        self._sequence = 0

    def entries(self) -> list[Entry]:
        """The checkpoints, the newest last."""
        return sorted(self._files, key=lambda entry: entry.sequence)

    def read(self, entry: Entry) -> bytes:
        """The bytes of a checkpoint. Raises :class:`Damaged` when they cannot be read."""
        file = self._files[entry]
        try:
            file.seek(0)
            return file.read()
        except OSError as error:
            raise Damaged(f"{type(error).__name__}: {error}") from None

    def write(self, position: Position, data: bytes) -> None:
        """Keep a checkpoint, then let old ones go. Raises :class:`ClusterError` when there is no room."""
        entry = Entry(position.label, self._sequence, position.fit, position.complete, len(data), position.step)
        try:
            file = tempfile.TemporaryFile(prefix="tfos-checkpoint-")  # noqa: SIM115 - open as long as it is kept
            try:
                file.write(data)
                file.flush()
            except OSError:
                file.close()
                raise
        except OSError as error:
            raise ClusterError(
                f"A checkpoint of {len(data) / 1e6:.0f} MB cannot be kept in {self.where}: {error.strerror}. Free some "
                "space there, or give --checkpoint-dir a place that has it."
            ) from error
        self._files[entry] = file
        self._sequence += 1
        for old in superfluous(self.entries(), self._keep):
            self._files.pop(old).close()

    def close(self) -> None:
        """Give the space back."""
        while self._files:
            self._files.popitem()[1].close()
