"""Logs that a step computes of the states of metrics, computed again of what these states are over all ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from tfos_magic.training.logs import metrics
from tfos_magic.training.logs.progress import flat


class _Elsewhere(Exception):
    """A value is made of more than states of metrics and constants."""


class Derived:
    """The logs of a session's models that are made of states of metrics."""

    def __init__(self) -> None:
        self._logs: weakref.WeakKeyDictionary[Any, dict[tuple[bool, str], _Log]] = weakref.WeakKeyDictionary()

    def trace(self, model: Any, training: bool, logs: Any) -> None:
        """Look at the ``logs`` of a step of ``model`` that is being traced."""
        graph = tf.compat.v1.get_default_graph()
        if not isinstance(logs, Mapping) or not hasattr(graph, "captures"):
            return
        states = {id(variable.handle): variable for variable in metrics.state(model)}
        captured = {inside.name: states.get(id(outside), outside) for outside, inside in graph.captures}
        known = self._logs.setdefault(model, {})
        for name, value in flat(logs).items():
            known.pop((training, name), None)
            if isinstance(value, tf.Tensor) and _reads(value, captured):
                known[training, name] = _Log(value, captured)

    def again(self, model: Any, training: bool, names: Set[str]) -> tuple[dict[str, Any], set[str]]:
        """Compute those of ``names`` that are made of metrics of what these are now; and which of them are made of
        something else, too, so that they cannot be computed."""
        logs = {name: log for (kind, name), log in self._logs.get(model, {}).items() if kind == training}
        made = {name: logs[name].compute for name in logs.keys() & names}
        values = {name: compute() for name, compute in sorted(made.items()) if compute is not None}
        return values, made.keys() - values.keys()


@dataclass(frozen=True)
class _Log:
    """A log of a step's graph. ``captured`` are variables, and constants, by the names of their placeholders there."""

    value: tf.Tensor
    captured: Mapping[str, Any]

    @cached_property
    def compute(self) -> Callable[[], Any] | None:
        """Computes the value anew, outside of the step."""
        try:
            return tf.function(lambda: _built(self.value, self.captured, {}), autograph=False).get_concrete_function()
        except _Elsewhere:
            return None


def _reads(value: tf.Tensor, captured: Mapping[str, Any]) -> bool:
    """Whether ``value`` is made of variables among ``captured``."""
    seen_names, ahead = {value.name}, [value]
    while ahead:
        inputs = [each for each in ahead.pop().op.inputs if each.name not in seen_names]
        seen_names.update(each.name for each in inputs)
        ahead += inputs
    return any(isinstance(captured.get(name), tf.Variable) for name in seen_names)


def _built(tensor: tf.Tensor, captured: Mapping[str, Any], made: dict[str, list[tf.Tensor]]) -> tf.Tensor:
    """``tensor`` of another graph, in the one that is being traced; ``made`` has what is there already."""
    op = tensor.op
    if op.name not in made:
        made[op.name] = _operation(op, captured, made)
    return made[op.name][tensor.value_index]


def _operation(op: tf.Operation, captured: Mapping[str, Any], made: dict[str, list[tf.Tensor]]) -> list[tf.Tensor]:
    if op.type == "ReadVariableOp" and isinstance(variable := captured.get(op.inputs[0].name), tf.Variable):
        return [variable.read_value()]
    if op.type == "Placeholder":
        constant = captured.get(op.outputs[0].name)
        if (
            constant is None
            or isinstance(constant, tf.Variable)
            or constant.dtype in (tf.resource, tf.variant)
            or tf.is_symbolic_tensor(constant)
        ):
            raise _Elsewhere
        return [tf.identity(constant)]
    if op.op_def.is_stateful or any(attribute.HasField("func") for attribute in op.node_def.attr.values()):
        raise _Elsewhere
    inputs = [_built(each, captured, made) for each in op.inputs]
    attributes = {name: value for name, value in op.node_def.attr.items() if not name.startswith("_")}
    graph = tf.compat.v1.get_default_graph()
    outputs = [output.dtype for output in op.outputs]
    return list(graph.create_op(op.type, inputs, outputs, attrs=attributes).outputs)
