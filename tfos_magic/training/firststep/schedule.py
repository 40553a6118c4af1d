"""Which steps of a model are tried: its first, and some later ones where it may come to do something else."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tfos_magic.training.loop import Loop

MOST_EPOCHS = 8
"""Epochs before each of which a step is tried that runs eagerly, or whose settings a callback has changed."""


def _later_steps() -> frozenset[int]:
    """Every other Fibonacci number: few, with odd and even ones in turn, for batches may come in turn as well."""
    steps, pair = set(), (2, 3)
    while pair[0] < 1 << 40:
        steps.add(pair[0])
        pair = pair[0] + pair[1], pair[0] + 2 * pair[1]
    return frozenset(steps)


LATER_STEPS = _later_steps()


class Schedule:
    """What has been tried, in one run. Every rank calls every method at the same time, and has the same answer."""

    def __init__(self, any_rank: Callable[[bool], bool]) -> None:
        self._any_rank = any_rank
        self._tried: dict[str, weakref.WeakSet[Any]] = {"fit": weakref.WeakSet(), "evaluate": weakref.WeakSet()}
        self._changing: weakref.WeakSet[Any] = weakref.WeakSet()
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._epochs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._settings: weakref.WeakKeyDictionary[Any, tuple[dict[int, Any], int]] = weakref.WeakKeyDictionary()

    def forget(self, model: Any, kind: str) -> None:
        """A function for ``kind`` is made anew: losses, optimizers or frozen layers may be others."""
        self._tried[kind].discard(model)

    def is_first(self, model: Any, kind: str) -> bool:
        """Whether a step of ``kind`` has yet to be tried."""
        return model not in self._tried[kind] and not (kind == "evaluate" and self._is_evaluated_as_trained(model))

    def is_again(self, model: Any, loop: Loop) -> bool:
        """Whether the step of ``loop``, which has been tried, is to be tried again."""
        if not loop.training:
            return False
        begins = loop.kind == "fit" and loop.step == 0
        if begins and self._any_rank(self._is_set_otherwise(model)):
            return True
        if model not in self._changing:
            return False
        self._steps[model] = steps = self._steps.get(model, 1) + 1
        if not (begins and loop.runs_eagerly):
            return steps in LATER_STEPS
        self._epochs[model] = epochs = self._epochs.get(model, 0) + 1
        return epochs <= MOST_EPOCHS or epochs in LATER_STEPS

    def note(self, model: Any, kind: str) -> None:
        """A step is tried."""
        self._tried[kind].add(model)

    def note_found(self, model: Any, settings: dict[int, Any], may_change: bool) -> None:
        """What the step reads and does not change, and whether other rows may show it to be another one."""
        self._settings[model] = (settings, self._settings.get(model, ({}, 0))[1])
        (self._changing.add if may_change else self._changing.discard)(model)

    def _is_set_otherwise(self, model: Any) -> bool:
        """Whether a callback has changed variables that may say what the step is."""
        before, again = self._settings.get(model, ({}, 0))
        now = {key: (variable, variable.numpy()) for key, (variable, _) in before.items()}
        changed = any(np.any(value != before[key][1]) for key, (_, value) in now.items())
        if again >= MOST_EPOCHS or not changed:
            return False
        self._settings[model] = (now, again + 1)
        return True

    def _is_evaluated_as_trained(self, model: Any) -> bool:
        """Whether an evaluation computes what training does."""
        return model in self._tried["fit"] and type(model).test_step is keras.Model.test_step
