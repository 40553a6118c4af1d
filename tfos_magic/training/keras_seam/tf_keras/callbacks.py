"""Callbacks of ``tf_keras`` in a distributed run: the one that keeps ranks together."""

from __future__ import annotations

import tf_keras

from tfos_magic.training.keras_seam.tf_keras import steps
from tfos_magic.training.run_hooks import EndHooks, RunHooks


class RunCallback(RunHooks, tf_keras.callbacks.Callback):
    """The callback of ``tf_keras``."""

    def take_over(self) -> None:
        """Give every rank rank 0's variables, and each random layer numbers of its own."""
        self._session.replicas.take_over(self.model, self._loop)
        if self._session.many and self._loop.kind == "fit":
            steps.part_generators(self._session, self.model)


class AfterBatches(EndHooks, tf_keras.callbacks.Callback):
    """The callback of ``tf_keras``."""
