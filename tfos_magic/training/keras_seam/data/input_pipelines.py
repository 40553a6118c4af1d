"""Input pipelines that a cell makes give every worker the same rows in the same order.

``tf.data`` promises that of pipelines that run in turn. A map that draws random numbers in several calls at once gives
them to whichever call comes first, and one that is not ``deterministic`` gives elements as they are ready.
"""

from __future__ import annotations

import copy
import inspect
from contextlib import ExitStack
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfos_magic.training.inputs.marks import has_shares
from tfos_magic.training.keras_seam.seams import wrap
from tfos_magic.training.loop_state import TrainingState

_IN_PARALLEL = ("map", "interleave", "batch", "ragged_batch")
_DRAWING = ("Random", "Rng", "Uniform", "Normal", "Multinomial", "SampleDistorted", "Assign")
"""Of these words are the types of operations that draw from a state that others change, or change one."""


def install(stack: ExitStack, session: TrainingState) -> None:
    """Let pipelines that are made until ``stack`` closes give all ranks the same elements.

    Those of a fed DataFrame have rows of this rank's own, for which they draw random numbers of its own.
    """

    def made(original: Any, arguments: dict[str, Any]) -> Any:
        if arguments.get("deterministic") is False:
            arguments["deterministic"] = True
        if has_shares(arguments["self"]):
            with session.drawing_for_shares():
                return original(**arguments)
        dataset = original(**arguments)
        if arguments.get("num_parallel_calls") is None or not any(
            _draws(f.function.graph) for f in dataset._functions()
        ):
            return dataset
        session.reporter.notice(
            f"Dataset.{original.__name__}() runs one call at a time, because its function draws random numbers: "
            "parallel calls (num_parallel_calls) would run in a different order on each worker."
        )
        # One call at a time may run ahead, but not beside others, as those of several datasets in one would.
        alone = original.__name__ == "map" and tf.executing_eagerly()
        in_turn = {"num_parallel_calls": 1} if alone else {"num_parallel_calls": None, "deterministic": None}
        return original(**arguments | in_turn)

    def with_options(original: Any, dataset: Any, options: Any, name: str | None = None) -> Any:
        if options.deterministic is False:
            options = copy.deepcopy(options)
            options.deterministic = True
        return original(dataset, options, name)

    for name in _IN_PARALLEL:
        signature = inspect.signature(getattr(tf.data.Dataset, name))

        def call(original: Any, *args: Any, _signature: inspect.Signature = signature, **kwargs: Any) -> Any:
            bound = _signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return made(original, dict(bound.arguments))

        wrap(stack, tf.data.Dataset, name, call)
    wrap(stack, tf.data.Dataset, "with_options", with_options)


def operations(graph: Any) -> set[str]:
    """The types of the operations in a function, and in those that it calls."""
    return {node.op for node in nodes_of(graph)}


def nodes_of(graph: Any) -> list[Any]:
    """The operations in a function, and in those that it calls, as ``NodeDef``."""
    definition = graph.as_graph_def()
    return [*definition.node, *(node for function in definition.library.function for node in function.node_def)]


def has_state(kind: str) -> bool:
    """Whether operations of a type may give another result, or do something, each time they run."""
    known = op_def_registry.get(kind)
    return known is not None and bool(known.is_stateful)


def _draws(graph: Any) -> bool:
    """Whether a function, or one that it calls, has an operation whose results depend on the order of calls."""
    return any(has_state(kind) for kind in operations(graph) if any(word in kind for word in _DRAWING))
