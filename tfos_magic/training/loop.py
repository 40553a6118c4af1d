"""Where a ``fit``, ``evaluate`` or ``predict`` is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfos_magic.training.checkpointing.resume import Fit


class Loop:
    """A ``fit`` or ``evaluate`` that is going on: what it trains and where it is. ``kind`` is the method's name."""

    def __init__(self, kind: str, model: Any, steps: int = 0) -> None:
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
        self.data: Any = None
        self.shares: list[int] | None = None
        self.fit: Fit | None = None
        self.finish: Callable[[Any], Any] | None = None

    @property
    def training(self) -> bool:
        return self.kind in ("fit", "train_on_batch")
