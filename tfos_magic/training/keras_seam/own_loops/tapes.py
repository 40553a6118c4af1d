"""Gradients that a training loop of a cell's own takes of a batch of which ranks have shares."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from tfos_magic.training import refusals
from tfos_magic.training.firststep.step_trial import of_variables
from tfos_magic.training.keras_seam.seams import replaced, wrap
from tfos_magic.training.rank_session import Session
from tfos_magic.training.step import Step
from tfos_magic.training.strategies.sync import SyncStrategy


class Tapes:
    """Makes gradients by weights those of all rows as they are taken, for a loop may clip them before it applies them.

    That is Horovod's ``DistributedGradientTape``. Within another tape, which could not follow that, they stay those of
    this rank's rows, and so do gradients of single rows. ``step`` gives the step of the loop, and ``over_copies`` tells
    whether every rank has all rows of the batch.
    """

    def __init__(self, session: Session, step: Callable[[], Step], over_copies: Callable[[], bool]) -> None:
        self._session, self._step, self._over_copies = session, step, over_copies
        self._by_row = self._unites = self._parts = False
        self._taken: set[tuple[int, ...]] = set()

    @property
    def united(self) -> bool:
        """Whether what the loop applies is made of gradients of all rows alone; of these the mean over ranks is the
        same again."""
        return self._unites and not self._parts and not self._over_copies()

    def begin(self) -> None:
        """A batch was drawn."""
        self._taken.clear()

    def install(self, stack: ExitStack) -> None:
        """Watch gradients being taken until ``stack`` closes."""

        def by_row(original: Any, *args: Any, **kwargs: Any) -> Any:
            with replaced(self, "_by_row", True):
                return original(*args, **kwargs)

        for owner, name in ((tf.GradientTape, "jacobian"), (tf.GradientTape, "batch_jacobian"), (tf, "vectorized_map")):
            wrap(stack, owner, name, by_row)
        wrap(stack, tf, "map_fn", by_row)
        wrap(stack, tf, "gradients", lambda original, ys, xs, *a, **k: self.taken(original(ys, xs, *a, **k), xs))

    def taken(self, gradients: Any, sources: Any) -> Any:
        """Give the ``gradients`` by ``sources`` as those of all rows, where they can be."""
        session, strategy = self._session, self._session.strategy
        in_own_loop = session.step is None and session.loop is None and session.exact and not self._over_copies()
        names = tf.nest.flatten(sources)
        weights = [i for i, source in enumerate(names) if of_variables(source)]
        if not (in_own_loop and weights and isinstance(strategy, SyncStrategy)):
            return gradients
        if self._by_row or record.could_possibly_record():
            self._parts = True
            if not self._by_row:
                refusals.note_nested(session.reporter)
            return gradients
        self._note_again(tuple(id(names[i]) for i in weights))
        self._unites, flat = True, tf.nest.flatten(gradients)
        for i, mean in zip(weights, strategy.combine(self._step(), [flat[i] for i in weights]), strict=True):
            flat[i] = mean
        return tf.nest.pack_sequence_as(gradients, flat)

    def _note_again(self, sources: tuple[int, ...]) -> None:
        if sources in self._taken and tf.executing_eagerly():
            refusals.note_several(self._session.reporter)
        self._taken.add(sources)
