"""The variables of one parameter server with the optimizer that trains them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfos_magic.training.parameter_server import optimizers
from tfos_magic.training.parameter_server.array_frames import Array
from tfos_magic.training.parameter_server.placement import blocks_of, join, part

Places = tuple[int, ...]


class Shard:
    """Built from what :func:`~tfos_magic.training.parameter_server.optimizers.describe` gave, and the values of its
    variables followed by those of the optimizer's state. Everything happens in one thread."""

    def __init__(self, description: bytes, start: Sequence[Array]) -> None:
        self._optimizer, self._variables = optimizers.build(description)
        self._dtypes = [variable.dtype for variable in self._variables]
        everything = range(len(self._variables))
        self._blocks = blocks_of(self._dtypes, everything)
        self._stored = [*self._variables, *optimizers.state(self._optimizer, everything)]
        for variable, value in zip(self._stored, start, strict=True):
            variable.assign(value)
        self._updates: dict[tuple[Places, Places], Callable[..., list[tf.Tensor]]] = {}

    @property
    def iterations(self) -> int:
        return int(self._optimizer._iterations.numpy())

    def set_learning_rate(self, rate: float) -> None:
        """Follow what callbacks did to the rate; it must not be a schedule's."""
        self._optimizer.learning_rate = rate

    def push(self, dense: Places, sparse: Places, gradients: Sequence[Array]) -> None:
        """Take a step of the optimizer with the gradients of some variables, given by their places.

        ``gradients`` are a flat array for each dtype among the ``dense``, then values and row numbers (int64) of each
        of the ``sparse``.
        """
        if not dense and not sparse:
            return
        update = self._updates.get((dense, sparse)) or self._make_update(dense, sparse)
        update(*(tf.convert_to_tensor(gradient) for gradient in gradients))

    def weights(self) -> list[Array]:
        """The variables as they are now, one flat array for each dtype."""
        return [join(block, [v.value for v in self._variables]).numpy() for block in self._blocks]

    def everything(self) -> list[Array]:
        """Variables, then the optimizer's state, one by one."""
        return optimizers.values(self._stored)

    def _make_update(self, dense: Places, sparse: Places) -> Callable[..., list[tf.Tensor]]:
        blocks = blocks_of(self._dtypes, dense)
        signature = [tf.TensorSpec([self._elements(block.members)], block.dtype) for block in blocks]
        for place in sparse:
            shape = self._variables[place].shape
            signature.append(tf.TensorSpec([None, *shape[1:]], self._dtypes[place]))
            signature.append(tf.TensorSpec([None], tf.int64))

        def update(*tensors: tf.Tensor) -> tf.Tensor:
            gradients: dict[int, Any] = {}
            for block, flat in zip(blocks, tensors, strict=False):
                gradients.update(zip(block.members, part(block, flat, self._variables), strict=True))
            for at, place in enumerate(sparse):
                rows, numbers = tensors[len(blocks) + 2 * at : len(blocks) + 2 * at + 2]
                gradients[place] = tf.IndexedSlices(rows, numbers, tuple(self._variables[place].shape))
            places = sorted(gradients)
            self._optimizer.apply([gradients[i] for i in places], [self._variables[i] for i in places])
            return self._optimizer._iterations.value

        self._updates[dense, sparse] = made = tf.function(update, input_signature=signature, autograph=False)
        return made

    def _elements(self, places: Places) -> int:
        return sum(tf.TensorShape(tuple(self._variables[i].shape)).num_elements() for i in places)
