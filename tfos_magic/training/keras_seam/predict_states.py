"""What predictions of a model use beside their rows, which may go on from batch to batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tfos_magic.training.keras_seam.trials import watch_variables
from tfos_magic.training.logs.metrics import raw

_OURS = "tfos_"
"""Names of variables that a run keeps begin so, such as the seconds that its data take."""


class PredictStates:
    """What is known of how a model predicts: the variables that it uses, and whether it draws random numbers."""

    def __init__(self) -> None:
        self.draws = False
        self._used: dict[int, tf.Variable] = {}
        self._before: dict[int, tf.Tensor] = {}
        self._weights: set[int] = set()

    def begin(self, model: Any) -> None:
        """Take what variables hold, to tell what predicting changes, and to put it back."""
        self._used |= {id(variable): variable for variable in map(raw, model.non_trainable_variables)}
        self._weights = {id(raw(variable)) for variable in model.trainable_variables}
        self._before = {key: variable.read_value() for key, variable in self._used.items()}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the variables that predictions use in the block, as they run or their graph is made."""
        with ExitStack() as stack:
            watch_variables(stack, self._heed)
            yield

    def _heed(self, variable: tf.Variable) -> None:
        """A prediction is about to use ``variable``, or a graph is made that does."""
        if id(variable) not in self._used and not variable.name.startswith(_OURS):
            self._used[id(variable)] = variable
            with tf.init_scope():
                if variable.is_initialized():
                    self._before[id(variable)] = variable.read_value()

    def goes_on(self) -> bool:
        """Whether a batch depends on those before it: states of RNNs and of random generators go on with each."""
        states = (key for key in self._before if key not in self._weights)
        return self.draws or not all(np.array_equal(self._before[key], self._used[key]) for key in states)

    def restore(self, model: Any) -> None:
        """Put back what variables held."""
        for key, value in self._before.items():
            self._used[key].assign(value)
        if self.draws:
            model.predict_function = None  # with TensorFlow's generators within it, which then begin anew
