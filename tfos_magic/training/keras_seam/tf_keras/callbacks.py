"""Callbacks of ``tf_keras`` in a distributed run: who keeps which, and the one that conducts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from tfos_magic.training.keras_seam.callbacks import has_own
from tfos_magic.training.keras_seam.tf_keras import steps
from tfos_magic.training.loop import Loop
from tfos_magic.training.session import Session

CHIEF_ONLY = (
    tf_keras.callbacks.ModelCheckpoint,
    tf_keras.callbacks.TensorBoard,
    tf_keras.callbacks.CSVLogger,
    tf_keras.callbacks.ProgbarLogger,
    tf_keras.callbacks.RemoteMonitor,
)


def of_rank(callbacks: Any, rank: int, owns: Callable[[str], bool]) -> list[Any]:
    """The callbacks that act on this rank, as for Keras 3."""
    flat = tf.nest.flatten(getattr(callbacks, "callbacks", callbacks) or [])
    return [
        callback for callback in flat if rank == 0 or not isinstance(callback, CHIEF_ONLY) or has_own(callback, owns)
    ]


class RunCallback(tf_keras.callbacks.Callback):
    """Keeps ranks together at the seams of a loop; the last of the cell's callbacks, so that it sees what they did."""

    def __init__(self, session: Session, loop: Loop) -> None:
        super().__init__()
        self._session = session
        self._loop = loop

    def on_train_begin(self, logs: Any = None) -> None:
        self._loop.epochs = self.params.get("epochs") or 0
        self._loop.steps = self.params.get("steps") or 0
        self._take_over()
        if self._session.many:
            self._session.strategy.begin(self.model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._loop.epoch, self._loop.step = epoch, 0
        if self._session.many:
            self._session.strategy.begin_epoch(epoch)
        self._session.report("train", self._loop)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._session.report("train", self._loop, logs)
        self._session.reporter.epoch_end(epoch, self._loop.epochs, logs or {})
        if self._session.many:
            self._session.poll_end(self._loop)

    def on_train_end(self, logs: Any = None) -> None:
        if self._session.many:
            self._session.replicas.unify(self.model)

    def on_test_begin(self, logs: Any = None) -> None:
        loop = self._session.loop
        if loop is None:
            return
        if loop is self._loop:
            loop.steps = self.params.get("steps") or 0
            self._take_over()
        else:
            loop.epoch, loop.epochs = self._loop.epoch, self._loop.epochs
        self._session.report("validate", loop)

    def _take_over(self) -> None:
        """Give every rank rank 0's variables, and each random layer numbers of its own."""
        self._session.replicas.take_over(self.model, self._loop)
        if self._session.many and self._loop.kind == "fit":
            steps.part_generators(self._session, self.model)


class AfterBatches(tf_keras.callbacks.Callback):
    """Lets a training end after the very batch after which a callback before it wants that, as one process does."""

    def __init__(self, session: Session, loop: Loop) -> None:
        super().__init__()
        self._session = session
        self._loop = loop

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._session.poll_end(self._loop)
