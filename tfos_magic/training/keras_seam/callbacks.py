"""Callbacks in a distributed run: who keeps which, and the one that keeps ranks together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfos_magic.training import agreement
from tfos_magic.training.run_hooks import EndHooks, RunHooks

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

    Those that write to a path that this rank ``owns`` act here too, so that the cell finds their files; TensorBoard's
    folders are made.
    """
    given: Sequence[Any] = getattr(callbacks, "callbacks", callbacks) or []
    flat = keras.tree.flatten(given)
    acting = []
    for callback in flat:
        if rank == 0 or not isinstance(callback, CHIEF_ONLY) or has_own(callback, owns):
            acting.append(callback)
        elif isinstance(callback, keras.callbacks.TensorBoard) and owns(callback.log_dir):
            acting.append(LogFolders(callback.log_dir))
    return acting


class LogFolders(keras.callbacks.Callback):
    """Makes the folders for which rank 0's TensorBoard callback has event files: a cell may write to them as well."""

    def __init__(self, log_dir: str) -> None:
        super().__init__()
        self._log_dir = log_dir

    def on_train_begin(self, logs: Any = None) -> None:
        os.makedirs(os.path.join(self._log_dir, "train"), exist_ok=True)

    def on_test_begin(self, logs: Any = None) -> None:
        os.makedirs(os.path.join(self._log_dir, "validation"), exist_ok=True)


def has_own(callback: Any, owns: Callable[[str], bool]) -> bool:
    """Whether a callback writes to a path that this rank ``owns``."""
    path = next((path for name in _PATHS if (path := getattr(callback, name, None))), None)
    return isinstance(path, (str, os.PathLike)) and owns(os.fspath(path))


def verbosity(verbose: Any, rank: int) -> Any:
    """Rank 0 prints one line per epoch where the cell asks for output; a panel shows the rest."""
    return 0 if rank != 0 or verbose in ("auto", 0) else 2


class RunCallback(RunHooks, keras.callbacks.Callback):
    """The callback of Keras 3, which keeps checkpoints and what other callbacks say as well."""

    def take_over(self) -> None:
        self._session.replicas.take_over(self.model, self._loop)

    def begin(self) -> None:
        fit = self._loop.fit
        if fit is not None and fit.position is not None and fit.recorded and not fit.over:
            self._session.reporter.past_epochs(self._loop.epochs, fit.history.epoch, fit.history.history)
        if self._session.many:
            # BackupAndRestore, which acts on rank 0, may have moved the start.
            epoch = int(self._session.collectives.gather([self.model._initial_epoch or 0])[0, 0])
            self.model._initial_epoch = epoch or self.model._initial_epoch

    def on_train_end(self, logs: Any = None) -> None:
        if self._session.many and self._session.strategy.lockstep:
            agreement.refuse_parted(self._session, self.model.trainable_variables)
        super().on_train_end(logs)
        if self._session.many and not self._session.exact:  # rank 0's callbacks alone have written files
            self._session.context.refresh()
        self._session.checkpointer.end(self._loop)


class AfterBatches(EndHooks, keras.callbacks.Callback):
    """The callback of Keras 3."""
