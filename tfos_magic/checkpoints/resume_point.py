"""Which checkpoints a run goes on from: whole ones alone, and none of the middle of an epoch whose rows are others
now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tfos_magic.checkpoints.checkpoint import Checkpoint, Damaged, decode_whole
from tfos_magic.checkpoints.directory import Entry
from tfos_magic.checkpoints.setting import Setting
from tfos_magic.errors import UsageError

Read = Callable[[Entry], bytes]
Notify = Callable[[str], None]


def read_whole(read: Read, entry: Entry) -> tuple[Checkpoint, bytes]:
    """A checkpoint and its bytes. Raises :class:`Damaged` where it is not what was written under its name."""
    data = read(entry)
    checkpoint = decode_whole(data)
    if checkpoint.position.label not in entry.name:
        raise Damaged(f"it is the one of {checkpoint.position.words} by another name")
    return checkpoint, data


@dataclass
class Damages:
    """Checkpoints that were found damaged, to be told of when it is known what is used in their place."""

    notify: Notify
    found: list[str] = field(default_factory=list)

    def add(self, entry: Entry, error: Damaged) -> None:
        self.found.append(f"{entry.path} ({error})")

    def tell(self, instead: str) -> None:
        """Say which they are, if there are any, and forget them."""
        found, self.found = self.found, []
        if found:
            what = "A damaged checkpoint is" if len(found) == 1 else "Damaged checkpoints are"
            self.notify(f"{what} skipped: {'; '.join(found)}. {instead}")


class Choice:
    """Chooses among ``entries``, the newest last: the newest one, and the last of every ``fit`` before it.

    A damaged file is passed over for the one before it, with a notice. Where the newest is of the middle of an epoch
    and ``setting`` gives its steps other rows than they had, the newest of an epoch's beginning is taken, with a
    notice. Where there is none, the run begins anew; with ``resuming``, that raises :class:`UsageError` when epochs
    would be lost.
    """

    def __init__(
        self, entries: Sequence[Entry], read: Read, notify: Notify, setting: Setting | None, *, resuming: bool
    ) -> None:
        self._entries, self._read, self._notify, self._resuming = entries, read, notify, resuming
        self._setting = setting
        self._damages = Damages(notify)
        self._left: Checkpoint | None = None
        self._unlike: list[str] = []
        self.newest: Checkpoint | None = None

    def chosen(self) -> Iterator[tuple[Entry, Checkpoint, bytes]]:
        """The entries, one after another, with what they hold. Afterwards, ``newest`` is the first of them."""
        fits: set[int] = set()
        for entry in reversed(self._entries):
            if (found := self._look_at(entry, fits)) is not None:
                fits.add(entry.fit)
                yield entry, *found
        if self.newest is None:
            self._begin_anew()
        else:
            self._damages.tell("The part that it ended is trained again.")

    def _look_at(self, entry: Entry, fits: set[int]) -> tuple[Checkpoint, bytes] | None:
        """An entry that is used. None where it is not, or damaged."""
        if self.newest is not None:
            if not entry.complete or entry.fit > self.newest.position.fit or entry.fit in fits:
                return None
        elif self._left is not None and entry.step:
            return None
        try:
            checkpoint, data = read_whole(self._read, entry)
        except Damaged as error:
            self._damages.add(entry, error)
            return None
        if self.newest is None and not self._take(checkpoint):
            return None
        return checkpoint, data

    def _take(self, checkpoint: Checkpoint) -> bool:
        """Go on from a checkpoint, unless it is of the middle of an epoch that had other rows."""
        then, follows = (checkpoint.details.get(key) for key in ("setting", "follows_ranks"))
        unlike = self._setting.unlike(then or {}, follows_ranks=bool(follows)) if self._setting is not None else []
        if unlike and checkpoint.position.step:
            self._left, self._unlike = checkpoint, unlike
            return False
        self.newest = checkpoint
        self._damages.tell(f"Training continues from {checkpoint.position.words}.")
        if self._left is not None:
            words = checkpoint.position.words
            self._notify(
                f"{self._reason()} It goes back to {words}, and may end with other weights than an undisturbed run."
            )
        elif unlike and self._resuming:
            self._notify(f"From {checkpoint.position.words} on, the run has {', '.join(unlike)}.")
        return True

    def _begin_anew(self) -> None:
        self._damages.tell("Training starts over.")
        if self._left is None:
            return
        if self._resuming and (self._left.position.epoch or self._left.position.fit):
            raise UsageError(
                f"{self._reason()} There is no checkpoint of the beginning of an epoch to go back to: give the run "
                "what it had before, or leave out --resume to start over."
            )
        self._notify(f"{self._reason()} It starts over.")

    def _reason(self) -> str:
        assert self._left is not None
        return (
            f"The run cannot go on from {self._left.position.words}, in the middle of an epoch, where the remaining "
            f"steps would train other rows: it now has {', '.join(self._unlike)}."
        )
