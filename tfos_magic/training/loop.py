"""Where a ``fit``, ``evaluate`` or ``predict`` is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy.typing as npt
import tensorflow as tf

from tfos_magic.checkpoints.checkpoint import Position


@dataclass(frozen=True)
class Opening:
    """Python's and NumPy's generators as an epoch began, before Python code that reads data drew from them."""

    states: Mapping[str, Any]
    arrays: Mapping[str, npt.NDArray[Any]]


@dataclass
class Fit:
    """One ``fit`` of the cell, the ``index``-th. ``callbacks`` are this rank's, by class and number of that class.

    ``position`` is where it goes on from, if it does; ``over`` says that it was complete. ``metrics`` are the sums that
    rank 0 had counted in an epoch that goes on in its middle, ``opening`` what Python code drew from when it began.
    ``recorded`` says whether checkpoints are taken of it, once that is known; ``inside`` that the last one was taken in
    the middle of an epoch.
    """

    index: int
    initial_epoch: int
    epochs: int
    validation_freq: Any
    callbacks: Mapping[str, Any]
    history: keras.callbacks.History
    position: Position | None = None
    over: bool = False
    recorded: bool | None = None
    before: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: Sequence[npt.NDArray[Any]] | None = None
    began: float = 0.0
    steps: int = 0
    inside: bool = False
    opening: Opening | None = None

    def validations_before(self) -> int:
        """How many epochs before the one that goes on ended with validation."""
        last = self.position.epoch if self.position else 0
        return sum(map(self._validates, range(self.initial_epoch, last)))

    def past(self) -> dict[int, dict[str, Any]]:
        """What the history holds, by epoch. What only some epochs gave belongs to those that ended with validation; of
        anything else that fewer gave nobody knows to which it belongs, and it is left out."""
        epochs = self.history.epoch
        validated = [epoch for epoch in epochs if self._validates(epoch)]
        logs: dict[int, dict[str, Any]] = {epoch: {} for epoch in epochs}
        for name, values in self.history.history.items():
            given = next((some for some in (epochs, validated) if len(some) == len(values)), ())
            for epoch, value in zip(given, values, strict=False):
                logs[epoch][name] = value
        return logs

    def _validates(self, epoch: int) -> bool:
        freq = self.validation_freq
        return bool((epoch + 1) % freq == 0 if isinstance(freq, int) else epoch + 1 in freq)


class Loop:
    """A ``fit`` or ``evaluate`` that is going on: what it trains and where it is. ``kind`` is the method's name."""

    def __init__(self, kind: str, model: Any) -> None:
        self.kind = kind
        self.model = model
        self.epoch = 0
        self.epochs = 0
        self.step = 0
        self.steps = 0
        self.agreed = False
        self.compared = False
        self.broadcast_late = False
        self.restore_jit = False
        self.heeds_batches = False
        self.monitored: Sequence[str] = ()
        self.data: Any = None
        self.build: Callable[[], None] | None = None
        self.metrics_before: Mapping[int, tf.Tensor] = {}
        self.opening: Callable[[], None] | None = None
        self.shares: list[int] | None = None
        self.fit: Fit | None = None
        self.finish: Callable[[Any], Any] | None = None

    @property
    def runs_eagerly(self) -> bool:
        """Whether the Python code of a step runs at each step."""
        return bool(self.model.run_eagerly or tf.config.functions_run_eagerly())

    @property
    def training(self) -> bool:
        return self.kind in ("fit", "train_on_batch")
