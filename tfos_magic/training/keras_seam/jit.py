"""``jit_compile=True`` with several ranks: XLA compiles a model's forward pass, and so its gradient, and nothing else.

XLA cannot wait for other ranks, so gradients are exchanged, and the optimizer runs, outside of what it compiles. The
gradient of a compiled function is compiled too, as one piece: the exchange begins when all gradients are there.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src import tree
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx, Status
from tensorflow.python.eager.polymorphic_function.autograph_util import py_func_from_autograph
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from tfos_magic.training.firststep.attributes import Attributes
from tfos_magic.training.keras_seam.seams import wrap
from tfos_magic.training.loop import Loop
from tfos_magic.training.rank_session import Session

# What unknown lengths stand for where the forward pass is compiled on trial: rows, and anything else.
_TRIAL_ROWS, _TRIAL_LENGTH = 2, 32
_NOT_THE_CELLS = ("keras.", "tf_keras.", "tfos_magic.", "tensorflow.python.ops.parallel_for.")  # which needs its graph
_STEP_METHODS = ("train_step", "test_step", "compute_loss", "compute_metrics")


def take_over(session: Session, loop: Loop) -> None:
    """Let Keras trace the steps of ``loop`` without XLA; the model gets its own setting back when the loop ends."""
    if loop.model.jit_compile:
        loop.model.jit_compile = False
        loop.restore_jit = True
        if method := _own_step(loop.model):
            _note_off(session, loop.kind, f"it has its own {method}, which may read what its call() keeps")


def install(stack: ExitStack, session: Session) -> None:
    """Compile what can be compiled of what asks for it, models' steps and functions of the cell, until ``stack``
    closes."""
    wrap(stack, keras.Model, "__call__", _Forward(session).call)
    functions = _Functions(session)
    wrap(stack, Function, "__call__", functions.call)
    for name in ("sum", "mean", "concat"):
        wrap(stack, session.collectives.wire, name, functions.exchange)


class _Forward:
    """Calls models, compiled where they can be."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._within = False

    def call(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        if self._within or not self._is_wanted(model):
            return original(model, *args, **kwargs)
        self._within = True
        try:
            kind = self._session.loops[-1].kind
            if reason := self._refusal(kind, original, model, args, kwargs):
                _note_off(self._session, kind, reason)
                return original(model, *args, **kwargs)
            return _compiled(original, model, args, kwargs)
        finally:
            self._within = False

    def _is_wanted(self, model: Any) -> bool:
        session = self._session
        if session.step is None or session.loop is None or session.loop.model is not model or tf.executing_eagerly():
            return False
        return not _own_step(model) and session.was_to_be_compiled(model)

    def _refusal(self, kind: str, original: Callable[..., Any], model: Any, args: Any, kwargs: Any) -> str:
        """Compile the forward pass and its gradient on trial, outside of the graph that is being traced.

        Gives why they cannot be compiled; empty where they can. Layers may have been frozen when it was last asked.
        """
        leaves = tf.nest.flatten((args, kwargs))
        inputs = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
        if any(isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor)) for leaf in leaves):
            return "XLA supports no sparse or ragged inputs"
        outer, before = self._session.step, Attributes(model)
        with tf.init_scope():
            self._session.step = self._session.new_step(tf.constant(float(_TRIAL_ROWS)))
            try:
                reason = _try(_trial(original, model, args, kwargs, inputs), inputs, kind == "fit")
                return reason or ("its call() keeps tensors, which others may read" if before.holds_graph() else "")
            finally:
                self._session.step = outer
                model._clear_losses()


class _Functions:
    """Calls functions of the cell that are graphs of their own, in steps as a part of these, and without XLA.

    What a step does in such a function would be in its graph for good: with whom it exchanges, and the rows that it
    counts. And the graph of a step tells what its sparse gradients are computed of, which a graph within it hides. What
    XLA was to compile exchanges values as little as a whole step can, which shows when it is traced; and it builds no
    variables that others read.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._running: list[str] = []
        self._copies: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def call(self, original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.python_function.__module__.startswith(_NOT_THE_CELLS):
            return original(function, *args, **kwargs)
        within, compiles = self._session.step is not None, bool(function._jit_compile)
        if not (within or compiles):
            return original(function, *args, **kwargs)
        self._running += [function.name] if compiles else []
        try:
            return _inlined(function, args, kwargs) if within else original(self._copy(function), *args, **kwargs)
        finally:
            if compiles:
                self._running.pop()

    def _copy(self, function: Any) -> Any:
        if function not in self._copies:
            self._copies[function] = function._clone(None)
            self._copies[function]._jit_compile = None
        return self._copies[function]

    def exchange(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        for name in self._running:
            self._session.reporter.notice(
                f"jit_compile is off in the function {name}(): XLA cannot compile what workers exchange in it. "
                "Results are the same except for random numbers, which XLA draws differently. jit_compile=False hides "
                "this message."
            )
        return original(*args, **kwargs)


def _own_step(model: Any) -> str:
    """The name of a method of a step that is not Keras's; empty where all are."""
    return next((name for name in _STEP_METHODS if getattr(type(model), name) is not getattr(keras.Model, name)), "")


def _note_off(session: Session, kind: str, reason: str) -> None:
    session.reporter.notice(
        f"jit_compile is off in {kind}(): the model cannot be compiled apart from what workers exchange, because "
        f"{reason}. Results are the same except for random numbers, which XLA draws differently. jit_compile=False "
        "hides this message."
    )


def _compiled(original: Callable[..., Any], model: Any, args: Any, kwargs: Any) -> Any:
    """Call ``model`` in a function that XLA compiles, and bring out what Keras keeps on the side: losses and masks."""

    def forward() -> Any:
        outputs = original(model, *args, **kwargs)
        masks = [get_keras_mask(output) for output in tree.flatten(outputs)]
        losses = [loss for layer in model._flatten_layers() for loss in layer._losses]
        return outputs, masks, losses

    outputs, masks, losses = tf.function(forward, jit_compile=True, autograph=False)()
    for output, mask in zip(tree.flatten(outputs), masks, strict=True):
        if mask is not None:
            set_keras_mask(output, mask)
    model._clear_losses()
    keras.layers.Layer.add_loss(model, losses)  # that of a functional model refuses all
    return outputs


def _trial(original: Callable[..., Any], model: Any, args: Any, kwargs: Any, inputs: list[Any]) -> Any:
    """A compiled function of ``inputs``, the tensors among the arguments, that gives gradients of some loss."""
    signature = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]

    def gradients(*given: tf.Tensor) -> list[tf.Tensor]:
        rest = iter(given)
        again_args, again_kwargs = tf.nest.map_structure(
            lambda leaf: next(rest) if isinstance(leaf, tf.Tensor) else leaf, (args, kwargs)
        )
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(original(model, *again_args, **again_kwargs))
            losses = [tf.reduce_sum(tf.cast(output, tf.float32)) for output in outputs if output.dtype.is_floating]
        weights = [variable.value for variable in model.trainable_variables]
        return [*outputs, *(tf.convert_to_tensor(g) for g in tape.gradient(losses, weights) if g is not None)]

    return tf.function(gradients, input_signature=signature, jit_compile=True, autograph=False)


def _try(trial: Any, inputs: list[Any], training: bool) -> str:
    """Why XLA does not compile ``trial``; empty where it does."""
    try:
        graph = trial.get_concrete_function().graph.as_graph_def()
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        operations = {node.op for node in nodes}
        if any(name.startswith("Collective") or "PyFunc" in name for name in operations):
            return (
                "its forward pass exchanges values with the other workers, as BatchNormalization does, or runs Python"
            )
        if training and any(name.startswith("TensorList") for name in operations):
            return "its forward pass keeps a list of tensors for the gradient, as LSTM and GRU do"
        compiler = trial.experimental_get_compiler_ir(
            *(tf.zeros(_trial_shape(tensor.shape), tensor.dtype) for tensor in inputs)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without a device, which it warns of, it draws a random number to find one
            compiler(device_name=tf.zeros([]).device)
    except Exception as error:  # whatever a user's call() raises: the step raises it again, if it is the user's
        return f"XLA does not compile its forward pass ({type(error).__name__}: {_first_line(error)})"
    return ""


def _trial_shape(shape: tf.TensorShape) -> list[int]:
    unknown = [_TRIAL_ROWS] + [_TRIAL_LENGTH] * len(shape)
    return [default if length is None else length for length, default in zip(shape, unknown, strict=False)]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0][:200]


def _inlined(function: Any, args: Any, kwargs: Any) -> Any:
    """What a ``tf.function`` gives, computed where it is called; in a graph converted by AutoGraph, as it would be."""
    python = function.python_function
    if function._autograph and not tf.executing_eagerly():
        python = py_func_from_autograph(python, function._experimental_autograph_options)
    args, kwargs = tf.nest.map_structure(_tensor_of_array, (args, kwargs))
    status = Status.ENABLED if function._autograph else Status.DISABLED  # as it is for its graph, whatever it is here
    with ControlStatusCtx(status=status, options=function._experimental_autograph_options):
        return tf.nest.map_structure(_tensor_of_number, python(*args, **kwargs))


def _tensor_of_array(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray) else value


def _tensor_of_number(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, (bool, int, float, np.generic, np.ndarray)) else value
