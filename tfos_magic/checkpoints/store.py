"""Checkpoints beside the kernel: what rank 0 sends is written here, and what a run goes on from is read here.

So workers need no disk in common and no credentials. Files live wherever fsspec can open them: a path of the kernel's
own disk, ``hdfs://``, ``s3://``, ``gs://``, ``memory://``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from tfos_magic.checkpoints.checkpoint import (
    CHECKPOINT_BYTES,
    Assembly,
    Checkpoint,
    Damaged,
    Position,
    split,
)
from tfos_magic.checkpoints.directory import CheckpointFiles, Entry
from tfos_magic.checkpoints.lock import RunLock, refuse_alive
from tfos_magic.checkpoints.private_store import PrivateCheckpoints
from tfos_magic.checkpoints.resume_point import Choice, Damages, read_whole
from tfos_magic.checkpoints.setting import Setting
from tfos_magic.errors import ClusterError
from tfos_magic.transport.messages import CheckpointPart

FLUSH_SECONDS = 120.0
IDLE_SECONDS, SLOW_SECONDS = 1.0, 15.0


class CheckpointStore:
    """The checkpoints of one run, in a folder of their own below ``where``.

    ``where`` is a path or URL; when empty, the checkpoints lie in nameless files until :meth:`close`.
    ``keep`` is how many are kept, besides the last one of every ``fit`` that is over. With ``resume`` the newest run
    below ``where`` goes on, in its folder, with its ``seed``. ``newest`` is where a run would go on now, ``feeds`` what
    told the rows of its DataFrames from others, ``random`` the random states that its cell began with. ``notify`` is
    told, from any thread, what the user should know. Raises :class:`ClusterError` when nothing can be written there,
    and :class:`UsageError` where the run to go on from is still under way.
    """

    def __init__(
        self, where: str = "", keep: int = 3, *, resume: bool = False, notify: Callable[[str], None] = print
    ) -> None:
        self._notify = notify
        self._files: CheckpointFiles | PrivateCheckpoints
        self._files = CheckpointFiles(where, max(1, keep)) if where else PrivateCheckpoints(max(1, keep))
        self._assembly = Assembly()
        self._changed = threading.Condition()
        self._waiting: list[tuple[Position, bytes]] = []
        self._writing = self._closing = False
        self._writing_since = 0.0
        self._failed = ""
        self._resuming = resume
        self.seed: int | None = None
        self.newest: Position | None = None
        self.feeds: dict[str, list[int]] = {}
        self.random: dict[str, Any] = {}
        self._lock: RunLock | None = None
        if isinstance(self._files, CheckpointFiles):
            with self._files.alone():
                if resume:
                    self._find_run(self._files)
                self._lock = RunLock(self._files, self._files.run, notify)
        self._thread = threading.Thread(target=self._write_all, name="tfos-checkpoints", daemon=True)
        self._thread.start()

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def note(self, part: CheckpointPart) -> None:
        """Take a part from rank 0; a checkpoint that is whole is written soon, in another thread."""
        try:
            data = self._assembly.add(part)
            if data is None:
                return
            position = Position.from_meta(part.meta)
        except Damaged as error:
            self._notify(f"A checkpoint that came from worker {part.rank} is not kept: {error}.")
            return
        if (since := self._writing_since) and time.monotonic() - since > SLOW_SECONDS:
            self._writing_since = 0.0  # it is told once of each
            self._notify(
                f"A checkpoint has been on its way to {self._files.where} for {SLOW_SECONDS:.0f} s, and newer ones "
                "wait for it. The run continues."
            )
        with self._changed:
            # A newer checkpoint makes one that still waits for a slow disk needless, unless that ended a fit.
            self._waiting = [(p, d) for p, d in self._waiting if p.complete and p.fit != position.fit]
            self._waiting.append((position, data))
            while len(self._waiting) > 1 and sum(len(d) for _, d in self._waiting) > CHECKPOINT_BYTES:
                self._waiting.pop(0)  # that fit would be trained anew
            self._changed.notify_all()

    def parts(self, run_id: str, setting: Setting | None = None) -> Iterator[CheckpointPart]:
        """What rank 0 needs to go on as a run with ``setting``, as messages for it; nothing where there is none.

        These are the checkpoints of a :class:`~tfos_magic.checkpoints.resume_point.Choice`. Raises :class:`UsageError`
        where a run that is resumed would lose what it has.
        """
        self.flush()
        resuming, self._resuming = self._resuming, False
        choice = Choice(self._files.entries(), self._files.read, self._notify, setting, resuming=resuming)
        for entry, checkpoint, data in choice.chosen():
            yield from split(run_id, entry.name, checkpoint.position, data)
        self.newest = choice.newest.position if choice.newest is not None else None

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until what was noted is written; False when that takes longer than ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._writing, timeout)

    @property
    def notices(self) -> list[str]:
        """Where a run that was begun before goes on."""
        if self.newest is None:
            return []
        provided = ", if the rows are as they were" if self.newest.step else ""
        return [f"Going on from {self.newest.words} of the run in {self._files.where}{provided}."]

    def written(self) -> Position | None:
        """The newest checkpoint, with what was noted before."""
        self.flush()
        return self.newest

    def close(self, timeout: float = FLUSH_SECONDS) -> None:
        """Write what is left, end the thread, drop private checkpoints. Closing twice is harmless."""
        if not self.flush(timeout):
            self._notify(f"The last checkpoint was not written to {self._files.where} within {timeout:.0f} s.")
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(5)
        if self._failed and isinstance(self._files, CheckpointFiles):
            there = f"goes on from {self.newest.words}" if self.newest else "finds none"
            self._notify(f"The last checkpoint was not written to {self._files.where}: --resume {there}.")
            self._failed = ""
        self._files.close()
        if self._lock is not None:
            self._lock.release()

    def _find_run(self, files: CheckpointFiles) -> None:
        """Choose the newest run below ``where`` that left checkpoints. Raises where none of them can be used, and
        where a run is still under way."""
        for run in files.runs():
            refuse_alive(files, run)
            files.open_run(run)
            if entries := files.entries():
                self._begin_at(self._newest_whole(entries))
                return
        files.new_run()
        self._notify(f"There is no checkpoint in {self._files.where} yet: the run starts from the beginning.")

    def _newest_whole(self, entries: list[Entry]) -> Checkpoint:
        damages = Damages(self._notify)
        for entry in reversed(entries):
            try:
                checkpoint, _ = read_whole(self._files.read, entry)
            except Damaged as error:
                damages.add(entry, error)
                continue
            damages.tell(f"The newest intact one is of {checkpoint.position.words}.")
            return checkpoint
        raise ClusterError(
            f"No checkpoint of the newest run in {self._files.where} can be used: {'; '.join(damages.found)}. Put "
            "whole copies in their place, move that run's folder away to continue from the run before it, or leave "
            "out --resume to start over."
        )

    def _begin_at(self, checkpoint: Checkpoint) -> None:
        details = checkpoint.details
        self.newest, self.seed = checkpoint.position, checkpoint.position.seed
        self.feeds, self.random = dict(details.get("feeds", {})), dict(details.get("random", {}))

    def _write_all(self) -> None:
        while (task := self._next()) is not None:
            self._write(*task)
            with self._changed:
                self._writing, self._writing_since = False, 0.0
                self._changed.notify_all()

    def _next(self) -> tuple[Position, bytes] | None:
        """Wait for something to write; None when the store is closed."""
        with self._changed:
            while not self._waiting:
                if self._closing:
                    return None
                self._changed.wait(IDLE_SECONDS)
            self._writing, self._writing_since = True, time.monotonic()
            return self._waiting.pop(0)

    def _write(self, position: Position, data: bytes) -> None:
        """Write one checkpoint; a failure costs the checkpoint, not the run."""
        try:
            self._files.write(position, data)
            self.newest, self._failed = position, ""
        except ClusterError as error:
            if str(error) != self._failed:
                self._notify(f"{error} The run continues.")
            self._failed = str(error)
