"""What a step that is tried reads and takes, variables and gradients; what it would write is left out."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from io import TextIOBase
from typing import Any

import keras
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer
from tensorflow.python.ops import gen_logging_ops, gen_lookup_ops, gen_summary_ops
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from tfos_magic.training.keras_seam.seams import replace, wrap


class Silence(TextIOBase):
    """Takes what this thread prints to ``stdout``, and passes on what others do; for ``redirect_stdout``."""

    def __init__(self) -> None:
        self._thread, self._stdout = threading.get_ident(), sys.stdout

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stdout.write(text)

    def flush(self) -> None:
        self._stdout.flush()


class MadeSomething(BaseException):
    """A step that was to make no variables of Keras's, and no layers, did."""


def refuse_making(stack: ExitStack) -> None:
    """Until ``stack`` closes, let a step make no variables of Keras's, and no layers, before anything knows of them."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise MadeSomething

    def apply(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not optimizer.built:  # it would take itself for built before it has all its variables
            raise MadeSomething
        return original(optimizer, *args, **kwargs)

    wrap(stack, BaseOptimizer, "apply", apply)
    wrap(stack, keras.layers.Layer, "__init__", refuse)
    wrap(stack, keras.Variable, "__init__", refuse)


def watch_building(stack: ExitStack, around: Callable[..., Any]) -> None:
    """Until ``stack`` closes, let ``around`` stand around Keras's building of a layer in its first call."""
    wrap(stack, keras.layers.Layer, "_maybe_build", around)


def watch_variables(stack: ExitStack, heed: Callable[[Any], None]) -> None:
    """Until ``stack`` closes, let ``heed`` see variables before their use, and those that a graph is made to use."""

    def handle_of(variable: Any) -> Any:
        heed(variable)
        return vars(variable)["_handle"]

    def set_handle(variable: Any, handle: Any) -> None:
        vars(variable)["_handle"] = handle

    # Whatever reads or assigns a variable asks for this, TensorFlow's own C++ too.
    replace(stack, ResourceVariable, "_handle", property(handle_of, set_handle))


def watch_outputs(stack: ExitStack, note: Callable[[str], None]) -> None:
    """Until ``stack`` closes, let ``note`` hear what is printed or written by TensorFlow, in words."""

    def noting(what: str) -> Callable[..., Any]:
        def write(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            note(what)
            return original(*args, **kwargs)

        return write

    wrap(stack, gen_logging_ops, "print_v2", noting("prints (tf.print)"))
    wrap(stack, gen_summary_ops, "write_summary", noting("writes for TensorBoard (tf.summary)"))


def rows_in_turn(stack: ExitStack, trying: Callable[[], bool]) -> Callable[[], bool]:
    """Until ``stack`` closes, let Jacobians of steps that are tried go through their rows in turn, from the second on.

    TensorFlow's ``pfor`` traces a function anew in each that is computed eagerly, for half a second. Gives what tells
    whether one is being computed.
    """
    is_known = is_within = False

    def begin(original: Any, tape: Any, persistent: bool = False, **kwargs: Any) -> None:
        original(tape, persistent or (trying() and is_known), **kwargs)

    def jacobian(original: Any, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_known, is_within
        if trying() and tape._persistent and len(args) < 3:
            kwargs["experimental_use_pfor"] = False
        is_known = is_within = True
        try:
            return original(tape, target, sources, *args, **kwargs)
        finally:
            is_within = False

    wrap(stack, tf.GradientTape, "__init__", begin)
    for name in ("jacobian", "batch_jacobian"):
        wrap(stack, tf.GradientTape, name, jacobian)
    return lambda: is_within


def install(
    stack: ExitStack,
    trying: Callable[[], bool],
    gradient: Callable[..., Any],
    heed: Callable[[Any], None],
    note_table: Callable[[], None],
) -> None:
    """Until ``stack`` closes, let ``gradient`` stand around that of tapes; ``heed`` sees variables before their use.

    Nothing is printed or written meanwhile; ``note_table`` is called instead of a write into a lookup table.
    ``trying`` tells whether it is a trial that asks, and not an input pipeline in a thread of its own.
    """
    wrap(stack, tf.GradientTape, "gradient", gradient)
    watch_variables(stack, heed)

    def write(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Write nothing now: steps are tried eagerly. A graph that is made meanwhile is kept, and writes later on."""
        return None if trying() and tf.executing_eagerly() else original(*args, **kwargs)

    wrap(stack, gen_logging_ops, "print_v2", write)
    wrap(stack, gen_summary_ops, "write_summary", write)

    def insert(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not trying():
            return original(*args, **kwargs)
        note_table()
        return None

    wrap(stack, gen_lookup_ops, "lookup_table_insert_v2", insert)
