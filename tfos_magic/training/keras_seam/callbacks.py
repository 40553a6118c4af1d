"""Callbacks in a distributed run: who keeps which, and the one that keeps ranks together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfos_magic.training import agreement, refusals
from tfos_magic.training.run_hooks import EndHooks, RunHooks

_CHIEF_ONLY = ("ModelCheckpoint", "TensorBoard", "CSVLogger", "BackupAndRestore", "ProgbarLogger", "RemoteMonitor")

_PATHS = ("filepath", "filename", "backup_dir")
"""Where callbacks of Keras keep the path that they write to, and that a cell reads from afterwards."""


def of_rank(callbacks: Any, rank: int, owns: Callable[[str], bool], library: Any = keras) -> list[Any]:
    """The callbacks of a ``library`` that act on this rank: those that write files or print do so on rank 0 alone.

    Those that write to a path that this rank ``owns`` act here too, so that the cell finds their files; TensorBoard's
    folders are made.
    """
    chief_only = tuple(getattr(library.callbacks, name) for name in _CHIEF_ONLY)
    acting = []
    for callback in _flat(callbacks):
        if rank == 0 or not isinstance(callback, chief_only) or _has_own(callback, owns):
            acting.append(callback)
        elif isinstance(callback, library.callbacks.TensorBoard) and owns(callback.log_dir):
            begin = {"on_train_begin": _makes(callback, "train"), "on_test_begin": _makes(callback, "validation")}
            acting.append(library.callbacks.LambdaCallback(**begin))
    return acting


def monitored(callbacks: Any) -> list[str]:
    """The names of logs that callbacks go by."""
    names = {getattr(callback, "monitor", None) for callback in _flat(callbacks)}
    return sorted(name for name in names if isinstance(name, str))


def _flat(callbacks: Any) -> list[Any]:
    given: Sequence[Any] = getattr(callbacks, "callbacks", callbacks) or []
    return list(keras.tree.flatten(given))


def _makes(callback: Any, part: str) -> Callable[..., None]:
    """What makes the folder that rank 0's TensorBoard ``callback`` has for a part: a cell may write to it as well."""
    return lambda logs=None: os.makedirs(os.path.join(callback.log_dir, part), exist_ok=True)


def _has_own(callback: Any, owns: Callable[[str], bool]) -> bool:
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
        if fit is not None and fit.position is not None and fit.recorded:
            self._session.reporter.past_epochs(self._loop.epochs, fit.past())
        if self._session.many:
            refusals.refuse_own_function(self.model.train_function, "train_function", "train")
            # BackupAndRestore, which acts on rank 0, may have moved the start.
            epoch = int(self._session.collectives.gather([self.model._initial_epoch or 0])[0, 0])
            self.model._initial_epoch = epoch or self.model._initial_epoch

    def on_train_end(self, logs: Any = None) -> None:
        if self._session.many and self._session.strategy.lockstep:
            agreement.refuse_parted(self._session, self.model.trainable_variables)
            self._session.remember(self.model.trainable_variables)
            if self._session.exact:
                agreement.refuse_parted_statistics(self._session, self.model)
        super().on_train_end(logs)
        if self._session.many and not self._session.exact:  # rank 0's callbacks alone have written files
            self._session.context.refresh()
        self._session.checkpointer.end(self._loop)


class AfterBatches(EndHooks, keras.callbacks.Callback):
    """The callback of Keras 3."""
