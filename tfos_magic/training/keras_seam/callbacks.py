"""Callbacks in a distributed run: who keeps which, and the one that conducts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfos_magic.training import agreement
from tfos_magic.training.loop import Loop
from tfos_magic.training.session import Session

CHIEF_ONLY = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
)


_PATHS = ("filepath", "filename", "backup_dir")
"""Where callbacks of Keras keep the path that they write to, and that a cell reads from afterwards."""


def of_rank(callbacks: Any, rank: int, owns: Callable[[str], bool]) -> list[Any]:
    """The callbacks that act on this rank: those that write files or print do so on rank 0 alone.

    Those that write to a path that this rank ``owns`` act here too, so that the cell finds their files.
    """
    given: Sequence[Any] = getattr(callbacks, "callbacks", callbacks) or []
    flat = keras.tree.flatten(given)
    return [
        callback for callback in flat if rank == 0 or not isinstance(callback, CHIEF_ONLY) or has_own(callback, owns)
    ]


def has_own(callback: Any, owns: Callable[[str], bool]) -> bool:
    """Whether a callback writes to a path that this rank ``owns``."""
    path = next((path for name in _PATHS if (path := getattr(callback, name, None))), None)
    return isinstance(path, (str, os.PathLike)) and owns(os.fspath(path))


def verbosity(verbose: Any, rank: int) -> Any:
    """Rank 0 prints one line per epoch where the cell asks for output; a panel shows the rest."""
    return 0 if rank != 0 or verbose in ("auto", 0) else 2


class RunCallback(keras.callbacks.Callback):
    """Keeps ranks together at the seams of a loop; the last of the callbacks, so that it sees what the others did."""

    def __init__(self, session: Session, loop: Loop) -> None:
        super().__init__()
        self._session = session
        self._loop = loop

    def on_train_begin(self, logs: Any = None) -> None:
        self._loop.epochs = self.params.get("epochs") or 0
        self._loop.steps = self.params.get("steps") or 0
        self._session.checkpointer.begin(self._loop)
        self._session.replicas.take_over(self.model, self._loop)
        self._tell_the_past()
        if self._session.many:
            # BackupAndRestore, which acts on rank 0, may have moved the start.
            epoch = int(self._session.collectives.gather([self.model._initial_epoch or 0])[0, 0])
            self.model._initial_epoch = epoch or self.model._initial_epoch
            self._session.strategy.begin(self.model)

    def _tell_the_past(self) -> None:
        fit = self._loop.fit
        if fit is not None and fit.position is not None and fit.recorded and not fit.over:
            self._session.reporter.past_epochs(self._loop.epochs, fit.history.epoch, fit.history.history)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._loop.epoch, self._loop.step = epoch, 0
        if self._session.many:
            self._session.strategy.begin_epoch(epoch)
        self._session.checkpointer.epoch_begins(self._loop)
        self._session.report("train", self._loop)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._session.report("train", self._loop, logs)
        self._session.reporter.epoch_end(epoch, self._loop.epochs, logs or {})
        if self._session.many:
            self._session.poll_end(self._loop)
        self._session.checkpointer.epoch_ends(self._loop)

    def on_train_end(self, logs: Any = None) -> None:
        if self._session.many:
            if self._session.strategy.lockstep:
                agreement.refuse_parted(self._session, self.model.trainable_variables)
            self._session.replicas.unify(self.model)
            if not self._session.exact:  # rank 0's callbacks alone have written files
                self._session.context.refresh()
        self._session.checkpointer.end(self._loop)

    def on_test_begin(self, logs: Any = None) -> None:
        loop = self._session.loop
        if loop is None:
            return
        if loop is self._loop:
            loop.steps = self.params.get("steps") or 0
            self._session.replicas.take_over(self.model, loop)
        else:
            loop.epoch, loop.epochs = self._loop.epoch, self._loop.epochs
        self._session.report("validate", loop)


class AfterBatches(keras.callbacks.Callback):
    """Lets a training end after the very batch after which a callback before it wants that, as one process does."""

    def __init__(self, session: Session, loop: Loop) -> None:
        super().__init__()
        self._session = session
        self._loop = loop

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._session.poll_end(self._loop)
