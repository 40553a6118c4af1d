"""Functions on the way from shares that keep a state made of rows, which would be of this worker's rows alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfos_magic.errors import TrainingError
from tfos_magic.training.inputs.marks import has_shares, inputs_of, is_marked
from tfos_magic.training.keras_seam.data.input_pipelines import nodes_of

_CHANGING = ("Assign", "ResourceScatter", "ResourceStridedSliceAssign", "ResourceApply", "LookupTableInsert")
"""The types of operations that change a state begin so."""


def refuse_states(dataset: Any) -> None:
    """Raise :class:`TrainingError` where a map or a scan over shares keeps what it makes of the rows of a batch."""
    if is_marked(dataset) or not has_shares(dataset):
        return
    for source in inputs_of(dataset):
        refuse_states(source)
    for wrapper in dataset._functions():
        graph = wrapper.function.graph
        states = len(tf.nest.flatten(dataset._state_structure)) if hasattr(dataset, "_state_structure") else 0
        if _keeps_rows(graph, states):
            raise TrainingError(
                f"{'scan' if states else 'map'}() on each worker's own rows keeps a state computed from them, such as "
                "a running mean, so the state would differ between workers. Compute it in Spark first (df.select, "
                "df.agg), or in a layer of the model; or train with one worker (-n 1)."
            )


def _keeps_rows(graph: Any, states: int) -> bool:
    """Whether a state depends on the element; the first ``states`` of the inputs, and of the outputs, are states."""
    captured = {id(placeholder) for placeholder in graph.internal_captures}
    given = [tensor for tensor in graph.inputs if id(tensor) not in captured][states:]
    reached = {id(tensor) for tensor in given}
    for operation in graph.get_operations():
        if not any(id(tensor) in reached for tensor in operation.inputs):
            continue
        reached |= {id(tensor) for tensor in operation.outputs}
        if operation.type.startswith(_CHANGING) or _changes(graph, _called(operation)):
            return True
    return any(id(tensor) in reached for tensor in graph.outputs[:states])


def _called(operation: Any) -> set[str]:
    """The names of the functions that an operation calls."""
    attributes = operation.node_def.attr.values()
    return {a.func.name for a in attributes if a.HasField("func")} | {f.name for a in attributes for f in a.list.func}


def _changes(graph: Any, names: Iterable[str]) -> bool:
    """Whether functions, or others in the same library that they may call, change a state."""
    return bool(names) and any(node.op.startswith(_CHANGING) for node in nodes_of(graph))
