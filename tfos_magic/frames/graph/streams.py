"""Random numbers of a traced function: which operations draw them, and a stream of its own for each partition."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from ml_dtypes import finfo

from tfos_magic.errors import UsageError

_DRAWING = re.compile("Random|Multinomial|TruncatedNormal|Sampler|SampleDistorted|Rng|Stateful(?!Partitioned)")
# What holds the state of keras.random.SeedGenerator and of tf.random.Generator.
_STATES = ("seed_generator_state", "StateVar")
# What TensorFlow takes as the seed of the graph where only the operation has one.
_GRAPH_SEED = 87654321


def nodes_of(graph: Any) -> list[Any]:
    """The nodes of a graph and of the functions that it calls."""
    definition = graph.as_graph_def()
    return [*definition.node, *(node for function in definition.library.function for node in function.node_def)]


def draws(nodes: Sequence[Any]) -> bool:
    """True when any of the nodes draws random numbers."""
    return any(_DRAWING.search(node.op) for node in nodes)


def assigns(nodes: Sequence[Any]) -> bool:
    """True when any of the nodes changes a variable."""
    return any(node.op.startswith("Assign") for node in nodes)


def precision(nodes: Sequence[Any]) -> float:
    """Machine epsilon of the coarsest floating-point type that the nodes compute in; 0 where there is none."""
    met = {tf.as_dtype(attr.type) for node in nodes for attr in node.attr.values() if attr.type}
    return max((float(finfo(dtype.as_numpy_dtype).eps) for dtype in met if dtype.is_floating), default=0.0)


def is_seeded(nodes: Sequence[Any]) -> bool:
    """True when some operation draws the numbers of a seed anew in each process."""
    return bool(_seeds(nodes) - {(0, 0)})


def states_of(graph: Any) -> dict[int, tuple[Any, Any]]:
    """The states of random generators that a graph uses, each with its first value."""
    variables = {id(each): each for each in graph.variables if each.name.split("/")[-1].startswith(_STATES)}
    return {key: (variable, variable.numpy()) for key, variable in variables.items()}


def begin(states: Mapping[int, tuple[Any, Any]], stream: int) -> None:
    """Put generators where this stream begins; stream 0 is the user's own."""
    for variable, first in states.values():
        value = first.copy()
        if stream:
            # A state is a counter and, last, a key: of Keras' two words the first is the seed.
            value[0 if len(value) == 2 else -1] = folded(first.tolist(), stream)
        variable.assign(value)


def streamed(body: Callable[..., Any], stream: int) -> Callable[..., Any]:
    """``body`` to be traced with seeds of this stream; stream 0 has the user's own."""

    def call(*blocks: Any) -> Any:
        if stream:
            tf.compat.v1.set_random_seed(_seed_of(stream))
        return body(*blocks)

    return call


def refuse_other_seeds(nodes: Sequence[Any], stream: int) -> None:
    """Raise :class:`UsageError` for operations that did not take the seed with which their graph was traced."""
    if stream and {seed for seed, _ in _seeds(nodes)} - {0, _seed_of(stream)}:
        raise UsageError(
            "the function calls a tf.function of its own that draws seeded random numbers, which would be the same in "
            "every partition: take that decorator off, as what is mapped is traced anyway"
        )


def repeated_draw(graph: Any) -> str | None:
    """The name of an operation that draws a number for each row from a constant seed: the same ones in every block."""
    data = {id(tensor) for tensor in graph.inputs} - {id(tensor) for tensor in graph.internal_captures}
    for op in graph.get_operations():
        by_rows = (
            op.type.startswith("Stateless") and _DRAWING.search(op.type) and not op.outputs[0].shape.is_fully_defined()
        )
        if by_rows and not any(_varies(seed, data) for seed in op.inputs[1:3]):
            return str(op.name)
    return None


def folded(seeds: Sequence[int], stream: int) -> int:
    """A seed of 31 bits for one of many streams."""
    entropy = [*(int(seed) & (1 << 64) - 1 for seed in seeds), stream]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)


def _seed_of(stream: int) -> int:
    return folded([_GRAPH_SEED], stream)


def _seeds(nodes: Sequence[Any]) -> set[tuple[int, int]]:
    drawing = [node for node in nodes if _DRAWING.search(node.op) and "seed2" in node.attr]
    return {(node.attr["seed"].i, node.attr["seed2"].i) for node in drawing}


def _varies(tensor: Any, data: set[int]) -> bool:
    """True when a tensor is made from the data or from a variable."""
    waiting, seen = [tensor], set()
    while waiting:
        each = waiting.pop()
        if id(each) in data or each.op.type == "ReadVariableOp":
            return True
        if each.op.name not in seen:
            seen.add(each.op.name)
            waiting.extend(each.op.inputs)
    return False
