"""What a rank asks of all with its next step: to stop the run, or to end the training; and what all have asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

LEAVE = 2.0**-20
"""The vote to stop of a rank that was asked to leave a checkpoint and go: of however many ranks, below that of one."""


class StopVotes:
    """The votes of a rank; ``stopping`` tells whether it was asked to stop the run, ``leaving`` whether to go after a
    step, with a checkpoint."""

    def __init__(self, stopping: Callable[[], bool], leaving: Callable[[], bool]) -> None:
        self._stopping, self._leaving = stopping, leaving
        self.vote = tf.Variable([0.0, 0.0], trainable=False, name="tfos_vote")
        self.vote_sum = tf.Variable([0.0, 0.0, 0.0], trainable=False, name="tfos_vote_sum")
        self._cast = (0.0, 0.0)

    def cast(self, end: bool = False) -> None:
        """Say in the next step whether this rank was asked to stop the run, and whether it wants training to end."""
        vote = (1.0 if self._stopping() else LEAVE if self._leaving() else 0.0, float(end))
        if vote != self._cast:
            self.vote.assign(vote)
            self._cast = vote

    def counted(self) -> tuple[bool, bool, bool]:
        """What all know since the last step: was a rank asked to stop, wants it training to end, has it other data."""
        stop, end, apart = self.vote_sum.numpy()
        return bool(stop >= 1), bool(end > 0), bool(apart > 0)

    def left(self) -> bool:
        """Whether all know since the last step that a rank was asked to leave, and none to stop."""
        return bool(0 < self.vote_sum.numpy()[0] < 1)

    def apart(self) -> tf.Tensor:
        """Above 0 where the digests of the last step were not the same on all ranks; of :func:`digests.apart`."""
        return self.vote_sum.read_value()[2]


def ends_by_itself(model: Any) -> bool:
    """Whether a step of the model's own says when its training ends."""
    return names_stop_training(type(model).train_step, model)


def names_stop_training(function: Any, owner: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Whether ``stop_training`` stands in a function, or in one that it names: of its owner, or around it."""
    code = getattr(function, "__code__", None)
    if code is None or code in seen or str(function.__module__).startswith(("keras.", "tf_keras.")):
        return False
    seen |= {code}
    if "stop_training" in (*code.co_names, *code.co_consts):
        return True
    attributes = (
        attribute for name in code.co_names for attribute in (vars(owner).get(name), getattr(type(owner), name, None))
    )
    around = inspect.getclosurevars(function)
    return any(
        names_stop_training(other, owner, seen)
        for other in (*attributes, *around.globals.values(), *around.nonlocals.values())
    )
