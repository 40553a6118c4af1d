"""What a step that is tried reads and takes: the variables it touches, and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import tensorflow as tf
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
