"""What a worker trains on parameter servers: one optimizer's variables, shared out, and the way there and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfos_magic.training.parameter_server import optimizers
from tfos_magic.training.parameter_server.array_frames import Array
from tfos_magic.training.parameter_server.client import ServerGroup
from tfos_magic.training.parameter_server.placement import VariableBlock, blocks_of, join, part, split_by_size


class Target:
    """The variables of ``optimizer`` on this rank, and which server has which. The same on every rank."""

    def __init__(self, optimizer: Any, group: ServerGroup, run_id: str) -> None:
        optimizers.check(optimizer)
        self.optimizer = optimizer
        self._group = group
        self._run_id = run_id
        self._variables: list[Any] = list(optimizer._trainable_variables)
        sizes = [tf.TensorShape(tuple(v.shape)).num_elements() * tf.as_dtype(v.dtype).size for v in self._variables]
        self._shares = split_by_size(sizes, len(group.addresses))
        self._places = {id(variable): i for i, variable in enumerate(self._variables)}
        self._function = group.function
        self._rate = np.nan

    def holds(self, variables: Sequence[Any]) -> bool:
        """Whether the servers have all of these."""
        return all(id(variable) in self._places for variable in variables)

    def begin(self) -> None:
        """From here on the servers hear of it when callbacks change the learning rate on this rank."""
        self._rate = float(self.learning_rate)

    def changed_rate(self, rate: float) -> float | None:
        """The learning rate, where it is not what it was when last asked."""
        if np.isnan(rate) or rate == self._rate:
            return None
        self._rate = rate
        return rate

    def set_up(self) -> None:
        """Give every server its variables, and the optimizer with its state, as they are on this rank."""
        requests = {}
        for server, share in enumerate(self._shares):
            description = optimizers.describe(self.optimizer, [self._variables[i] for i in share])
            arrays = [np.frombuffer(description, np.uint8), *optimizers.values(self._stored(share))]
            requests[server] = ({"kind": "setup", "run": self._run_id}, arrays)
        self._group.exchange(requests, "the parameter servers to take over the model")

    def pull(self, state: bool) -> None:
        """Take over the servers' weights and, with ``state``, what their optimizers keep."""
        header = {"kind": "pull", "run": self._run_id, "state": state}
        replies = self._group.ask(header, "the weights")
        # Backwards, so that what every server has, such as the number of steps, comes from the first.
        for share, (_, arrays) in reversed(list(zip(self._shares, replies, strict=True))):
            if state:
                for variable, value in zip(self._stored(share), arrays, strict=True):
                    variable.assign(value)
            else:
                self._assign(share, arrays)

    def push(self, gradients: Sequence[Any], variables: Sequence[Any], meta: tf.Tensor) -> tf.Tensor:
        """Send gradients and take over the weights that come back, in a graph or eagerly: one round trip.

        ``meta`` is float64: rows, votes and learning rate. Gives float64 votes and the number of steps. Gradients may
        be None, and sparse ones are sent sparse; the weights come back whole.
        """
        by_place = {self._places[id(v)]: g for g, v in zip(gradients, variables, strict=True) if g is not None}
        inputs: list[tf.Tensor] = []
        plans = [self._plan(share, by_place, inputs) for share in self._shares]
        key = self._group.register(ServerExchange(self, self._group, self._run_id, plans))
        blocks = [self._blocks(share) for share in self._shares]
        kinds = [tf.float64, *(tf.as_dtype(block.dtype) for of_share in blocks for block in of_share)]
        head, *flats = tf.numpy_function(self._function, [key, meta, *inputs], kinds)
        head.set_shape([3])
        for share, of_share in zip(self._shares, blocks, strict=True):
            self._assign(share, flats[: len(of_share)])
            flats = flats[len(of_share) :]
        self.optimizer._iterations.value.assign(tf.cast(head[2], self.optimizer._iterations.dtype))
        return head

    @property
    def learning_rate(self) -> tf.Tensor:
        """The rate as callbacks set it, float64; not a number where the optimizer has a schedule."""
        rate = self.optimizer._learning_rate
        return tf.cast(rate.value if hasattr(rate, "value") else np.nan, tf.float64)

    def _plan(self, share: Sequence[int], by_place: Mapping[int, Any], inputs: list[tf.Tensor]) -> TargetPlan:
        """Add what goes to one server to ``inputs``; gives what that is."""
        gradients = [by_place.get(i) for i in share]
        sparse = tuple(i for i, gradient in enumerate(gradients) if isinstance(gradient, tf.IndexedSlices))
        dense = tuple(i for i, gradient in enumerate(gradients) if gradient is not None and i not in sparse)
        before = len(inputs)
        inputs.extend(join(block, gradients) for block in blocks_of(self._dtypes(share), dense))
        for i in sparse:
            slices: Any = gradients[i]
            inputs += [slices.values, tf.cast(slices.indices, tf.int64)]
        return TargetPlan(dense, sparse, len(inputs) - before)

    def _assign(self, share: Sequence[int], flats: Sequence[Any]) -> None:
        variables = [self._variables[i] for i in share]
        for block, flat in zip(self._blocks(share), flats, strict=True):
            for place, value in zip(block.members, part(block, tf.convert_to_tensor(flat), variables), strict=True):
                variables[place].value.assign(value)

    def _blocks(self, share: Sequence[int]) -> list[VariableBlock]:
        return blocks_of(self._dtypes(share), range(len(share)))

    def _dtypes(self, share: Sequence[int]) -> list[str]:
        return [self._variables[i].dtype for i in share]

    def _stored(self, share: Sequence[int]) -> list[Any]:
        return [*(self._variables[i] for i in share), *optimizers.state(self.optimizer, share)]


class TargetPlan:
    """What a push brings one server: places of dense and of sparse gradients, in how many arrays."""

    def __init__(self, dense: tuple[int, ...], sparse: tuple[int, ...], arrays: int) -> None:
        self.dense, self.sparse, self.arrays = dense, sparse, arrays


class ServerExchange:
    """The round trip of a step, as a graph calls it: one for each place of the cell where gradients are applied."""

    def __init__(self, target: Target, group: ServerGroup, run_id: str, plans: Sequence[TargetPlan]) -> None:
        self._target = target
        self._group = group
        self._run_id = run_id
        self._plans = plans

    def __call__(self, meta: Array, *arrays: Array) -> list[Array]:
        rows, stop, end, rate = meta.tolist()
        header = {"kind": "push", "run": self._run_id, "votes": [stop, end], "rate": self._target.changed_rate(rate)}
        requests, at = {}, 0
        for server, plan in enumerate(self._plans):
            plan_arrays = arrays[at : at + plan.arrays]
            at += plan.arrays
            # Without rows a step changes nothing, but it counts, and it brings the weights.
            brought = (plan.dense, plan.sparse, plan_arrays) if rows > 0 else ((), (), ())
            requests[server] = ({**header, "dense": brought[0], "sparse": brought[1]}, brought[2])
        replies = self._group.exchange(requests, "an answer to a step, or slower workers to catch up")
        first = replies[0][0]
        head = np.array([*first["votes"], first["iterations"]], np.float64)
        return [head, *(flat for _, flats in replies for flat in flats)]
