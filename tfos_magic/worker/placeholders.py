"""What comes back from a worker in place of objects that make no sense away from it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any


@dataclass
class TrainingHistory:
    """What ``fit`` returned, as far as it is data: like ``keras.callbacks.History`` without the model.

    ``history`` maps a metric's name to its values by epoch, ``epoch`` lists the epochs, ``params`` what fit was given.
    It is read as a ``History`` of its ``library`` where that is loaded.
    """

    history: dict[str, list[float]]
    epoch: list[int] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    library: str = "keras"

    def as_loaded(self) -> Any:
        """A ``History``, where its library is loaded by now."""
        return _history(self.history, self.epoch, self.params, self.library)

    def __reduce__(self) -> Any:
        return _history, (self.history, self.epoch, self.params, self.library)


def _history(history: dict[str, list[float]], epoch: list[int], params: dict[str, Any], library: str) -> Any:
    callbacks = getattr(sys.modules.get(library), "callbacks", None)
    if callbacks is None:
        return TrainingHistory(history, epoch, params, library)
    made = callbacks.History()
    made.history, made.epoch, made.params = history, epoch, params
    return made
