"""Callbacks of ``tf_keras`` in a distributed run: who keeps which, and the one that keeps ranks together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from tfos_magic.training.keras_seam.callbacks import has_own
from tfos_magic.training.keras_seam.tf_keras import steps
from tfos_magic.training.run_hooks import EndHooks, RunHooks

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


class RunCallback(RunHooks, tf_keras.callbacks.Callback):
    """The callback of ``tf_keras``."""

    def take_over(self) -> None:
        """Give every rank rank 0's variables, and each random layer numbers of its own."""
        self._session.replicas.take_over(self.model, self._loop)
        if self._session.many and self._loop.kind == "fit":
            steps.part_generators(self._session, self.model)


class AfterBatches(EndHooks, tf_keras.callbacks.Callback):
    """The callback of ``tf_keras``."""
