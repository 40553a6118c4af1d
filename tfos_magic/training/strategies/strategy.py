"""What a strategy is: what the ranks do with each other's gradients and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from tfos_magic.training.step import Step


class Update:
    """The user's ``optimizer`` on this rank; called with gradients and variables it takes its step."""

    def __init__(self, optimizer: Any, apply: Callable[[Any, Sequence[Any], Sequence[Any]], None]) -> None:
        self.optimizer = optimizer
        self._apply = apply

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        self._apply(self.optimizer, gradients, variables)

    def build(self, variables: Sequence[Any]) -> None:
        """Make the optimizer's variables now: inside a branch of a graph they could not be made."""
        if not self.optimizer.built:
            self.optimizer.build(list(variables))

    def slots(self) -> list[Any]:
        """The optimizer's moments and the like; not its scalars, which are the same on every rank."""
        return [v for v in self.optimizer.variables if len(v.shape) > 0 and "float" in v.dtype]


class Strategy(Protocol):
    """One way to train with several ranks. Its methods are called on every rank, in the same order.

    ``exact`` says that each step is a step on the global batch: losses, BatchNormalization and metrics of a step then
    span all ranks. Where it is false, a step knows this rank's rows alone. In ``lockstep`` every rank takes every step
    with the others.
    """

    name: ClassVar[str]
    lockstep: ClassVar[bool]

    @property
    def exact(self) -> bool: ...

    def begin(self, model: Any) -> None:
        """A ``fit`` of ``model`` begins; its variables, and its optimizer's, are rank 0's on every rank."""
        ...

    def begin_epoch(self, epoch: int) -> None:
        """An epoch, counted from 0, of the ``fit`` begins."""
        ...

    def apply(self, step: Step, gradients: Sequence[Any], variables: Sequence[Any], update: Update) -> None:
        """Change ``variables`` by this rank's ``gradients``, while a step is traced or runs eagerly.

        ``update(gradients, variables)`` runs the user's optimizer on this rank. Each step must bring the votes of the
        ranks together, or say when they will be (``step.counted``).
        """
        ...

    def settle(self, model: Any) -> None:
        """An epoch of a ``fit`` of ``model`` ended, or it is evaluated on the way: make its weights equal now."""
        ...

    def end(self, model: Any) -> None:
        """A ``fit`` of ``model`` ended well: leave the same variables on every rank."""
        ...
