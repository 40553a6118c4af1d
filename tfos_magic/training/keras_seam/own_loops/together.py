"""Loops over rows that each worker has by itself: they end on all workers with the first that has no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfos_magic.errors import TrainingError
from tfos_magic.training.inputs.own_rows import ends_together, is_own, note_own
from tfos_magic.training.rank_session import Session


class Together:
    """Lets workers draw batches together: each batch is drawn when all have one and none is asked to stop."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def begin(self, iterator: Any, dataset: Any) -> None:
        """``iterator`` was made of ``dataset``."""
        note_own(iterator, dataset)
        iterator._tfos_together = self._session.loop is None and ends_together(dataset)

    def draw(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """Give the next batch; raises ``OutOfRangeError`` on all workers where one has none."""
        if not (getattr(iterator, "_tfos_together", False) and tf.executing_eagerly()):
            return original(iterator)
        try:
            batch, is_there = original(iterator), True
        except (StopIteration, tf.errors.OutOfRangeError):
            batch, is_there = None, False
        session = self._session
        found = session.collectives.gather([int(is_there), int(session.context.stop.requested)])
        if found[:, 1].any():
            session.raise_stopped("a training loop")
        if not found[:, 0].all():
            raise tf.errors.OutOfRangeError(None, None, "the rows of a worker have ended")
        return batch


def refuse_graph(dataset: Any) -> None:
    """Refuse a loop in a graph over rows of each worker's own, in which nobody would know that another has no more."""
    if is_own(dataset) and ends_together(dataset):
        raise TrainingError(
            "a loop over a distributed dataset runs in a tf.function, where workers cannot tell each other that one "
            "has no more rows. Write the loop outside it, as in: for batch in dataset: train_step(batch)."
        )
