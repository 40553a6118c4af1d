"""What a step that is tried reads and takes, variables and gradients; what it would write is left out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_logging_ops, gen_summary_ops
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from tfos_magic.training.keras_seam.seams import replace, wrap


def install(stack: ExitStack, gradient: Callable[..., Any], heed: Callable[[Any], None]) -> None:
    """Until ``stack`` closes, let ``gradient`` stand around that of tapes; ``heed`` sees variables before their use."""

    def handle_of(variable: Any) -> Any:
        heed(variable)
        return vars(variable)["_handle"]

    def set_handle(variable: Any, handle: Any) -> None:
        vars(variable)["_handle"] = handle

    wrap(stack, tf.GradientTape, "gradient", gradient)
    # Whatever reads or assigns a variable asks for this, TensorFlow's own C++ too.
    replace(stack, ResourceVariable, "_handle", property(handle_of, set_handle))
    wrap(stack, gen_logging_ops, "print_v2", _only_in_graphs)
    wrap(stack, gen_summary_ops, "write_summary", _only_in_graphs)


def _only_in_graphs(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Write nothing now: steps are tried eagerly. A graph that is made meanwhile is kept, and writes later on."""
    return None if tf.executing_eagerly() else original(*args, **kwargs)
