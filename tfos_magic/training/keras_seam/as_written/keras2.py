"""What programs for Keras 2 ask of Keras 3: SavedModels, steps that are no whole number, rates of learning."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfos_magic.errors import UsageError
from tfos_magic.training.keras_seam import seams
from tfos_magic.training.keras_seam.as_written.weight_files import apart, files_by_their_names, replace_files
from tfos_magic.training.keras_seam.own_loops.tape_loop import SUMMED
from tfos_magic.training.keras_seam.seams import replace, wrap

_Decay = keras.optimizers.schedules.InverseTimeDecay
_FILES = (".keras", ".h5", ".hdf5")
_ALIASES = {"int": int, "float": float, "bool": bool, "object": object, "str": str, "complex": complex}
_COMPILED = (
    *("optimizer", "loss", "metrics", "loss_weights", "weighted_metrics", "run_eagerly"),
    *("steps_per_execution", "jit_compile"),
)
_STEPS = ("steps_per_epoch", "validation_steps", "steps")


def keras2_understood(stack: ExitStack, notice: Callable[[str], None]) -> None:
    """Let Keras take, until ``stack`` closes, what it took in TensorFlow 2.15; ``notice`` is told of what differs."""

    def save(original: Any, model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = kwargs.pop("save_format", None)
        kwargs.pop("include_optimizer", None)
        if wanted == "tf" or (wanted is None and not str(filepath).endswith(_FILES)):
            kwargs.pop("signatures", None)
            return export_as_keras2(model, str(filepath))
        return apart(original, model, str(filepath), *args, **kwargs)

    files_by_their_names(stack, notice)
    wrap(stack, keras.Model, "save", save)
    for name in ("fit", "evaluate", "predict"):
        replace(stack, keras.Model, name, _loop(name))
    wrap(stack, seams.found(seams.BASE_TRAINER), "compile", _compile)
    wrap(stack, BaseOptimizer, "__init__", _optimizer)
    wrap(stack, BaseOptimizer, "apply_gradients", _apply_gradients)
    replace(stack, BaseOptimizer, "lr", property(_rate, _set_rate))
    replace(stack, tf.keras.backend, "set_value", _set_value)
    for name, kind in _ALIASES.items():
        if name not in vars(np):
            replace(stack, np, name, kind)


def _rate(optimizer: Any) -> Any:
    """The rate before it decays, as Keras 2 had it."""
    schedule = getattr(optimizer, "_learning_rate", None)
    return schedule.initial_learning_rate if isinstance(schedule, _Decay) else optimizer.learning_rate


def _set_rate(optimizer: Any, rate: Any) -> None:
    _refuse_decayed(isinstance(getattr(optimizer, "_learning_rate", None), _Decay))
    optimizer.learning_rate = rate


def _set_value(variable: Any, value: Any) -> None:
    _refuse_decayed(isinstance(variable, float))
    variable.assign(value)


def _refuse_decayed(decayed: bool) -> None:
    if decayed:
        raise UsageError("A learning rate with decay= cannot also be set: omit decay=, and set only the rate.")


def _optimizer(original: Any, optimizer: Any, learning_rate: Any, *args: Any, **kwargs: Any) -> Any:
    """Take ``lr`` and ``decay``, of which Keras 3 does the one not know and the other leave out."""
    rate, decay = kwargs.pop("lr", learning_rate), kwargs.pop("decay", None)
    if decay:
        rate = _Decay(rate, 1, decay)
    return original(optimizer, rate, *args, **kwargs)


def _apply_gradients(original: Any, optimizer: Any, grads_and_vars: Any, name: Any = None, **kwargs: Any) -> Any:
    """Take the word that a replica's gradients are sums of all already, by the names of TensorFlow 2.5 and 2.11."""
    summed = not kwargs.pop("experimental_aggregate_gradients", True)
    setattr(optimizer, SUMMED, kwargs.pop("skip_gradients_aggregation", summed))
    try:
        return original(optimizer, grads_and_vars, **kwargs)
    finally:
        delattr(optimizer, SUMMED)


def _compile(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Take arguments by their places in Keras 2, where metrics come before weights, unless these stand before them."""
    third, fourth = (_are_numbers(args[place : place + 1]) for place in (2, 3))
    if third or (args[2:3] == (None,) and fourth is False) or len(args) > len(_COMPILED):
        return original(model, *args, **kwargs)
    return original(model, **dict(zip(_COMPILED, args, strict=False)), **kwargs)


def _are_numbers(given: Any) -> bool | None:
    """Whether an argument holds numbers alone; None where it holds nothing."""
    leaves = [leaf for leaf in tf.nest.flatten(given) if leaf is not None]
    return all(isinstance(leaf, (int, float)) for leaf in leaves) if leaves else None


def _loop(name: str) -> Callable[..., Any]:
    """A loop of models, which goes on as that of their trainer: a run that trains together may replace it meanwhile."""

    def loop(model: Any, *args: Any, **kwargs: Any) -> Any:
        for steps in _STEPS:
            if isinstance(kwargs.get(steps), float):
                kwargs[steps] = math.ceil(kwargs[steps])
        for gone in ("workers", "use_multiprocessing", "max_queue_size"):
            kwargs.pop(gone, None)
        return getattr(seams.found(seams.TRAINER), name)(model, *args, **kwargs)

    return loop


def export_as_keras2(model: Any, path: str) -> None:
    """Write a SavedModel whose signature has the names that Keras 2 gave: ``conv2d_input``, and ``dense_1`` for what
    the layer of that name puts out. Raises ``ValueError`` for a model that has no inputs yet."""
    if not getattr(model, "inputs", None):
        raise ValueError("the model has no inputs yet: call fit(), or give its first layer an input_shape")
    structure = [tf.TensorSpec(x.shape, x.dtype, name) for x, name in zip(model.inputs, _inputs(model), strict=True)]
    names = _outputs(model)

    @tf.function(input_signature=structure)
    def serve(*inputs: Any) -> dict[str, Any]:
        made = model(list(inputs) if len(inputs) > 1 else inputs[0], training=False)
        return dict(zip(names, tf.nest.flatten(made), strict=True))

    module = tf.Module()
    module.variables_of_model = [variable.value for variable in model.variables]
    module.serve = serve
    signatures = {"serving_default": serve}
    if "://" in path:
        tf.io.gfile.makedirs(path)
        tf.saved_model.save(module, path, signatures=signatures)
    else:
        Path(path).mkdir(parents=True, exist_ok=True)
        replace_files(Path(path), lambda folder: tf.saved_model.save(module, folder, signatures=signatures))


def _inputs(model: Any) -> Sequence[str]:
    names = [tensor.name for tensor in model.inputs]
    if isinstance(model, keras.Sequential) and names[0].startswith("keras_tensor"):
        return [f"{model.layers[0].name}_input"]
    return [f"input_{i}" if name.startswith("keras_tensor") else name for i, name in enumerate(names, 1)]


def _outputs(model: Any) -> Sequence[str]:
    names = [y._keras_history.operation.name for y in model.outputs]
    return [name if names.count(name) == 1 else f"{name}_{i}" for i, name in enumerate(names)]
