"""What comes back from a worker in place of objects that make no sense away from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class TrainingHistory:
    """What ``fit`` returned, as far as it is data: like ``keras.callbacks.History`` without the model.

    ``history`` maps a metric's name to its values by epoch, ``epoch`` lists the epochs, ``params`` what fit was given.
    """

    history: dict[str, list[float]]
    epoch: list[int] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
