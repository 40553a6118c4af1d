"""What several workers cannot train of ``tf_keras`` as one process would is refused, with what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import tensorflow as tf
import tf_keras
from tf_keras.src.layers.normalization.batch_normalization import BatchNormalizationBase
from tf_keras.src.layers.rnn.base_rnn import RNN
from tf_keras.src.mixed_precision.loss_scale_optimizer import BaseLossScaleOptimizer
from tf_keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2

from tfos_magic.errors import TrainingError
from tfos_magic.training.firststep.python_objects import is_own_code, own_classes
from tfos_magic.training.loop import Loop
from tfos_magic.training.rank_session import Session

_OPTIMIZERS = (tf_keras.optimizers.Optimizer, OptimizerV2)


def refuse(what: str) -> NoReturn:
    raise TrainingError(
        f"{what} of tf_keras, which is Keras 2, cannot be distributed to several workers. Build the model with Keras "
        "3 (import keras), where it can: most models run there unchanged. Or train it with one worker (-n 1)."
    )


def check(session: Session, loop: Loop, arguments: dict[str, Any]) -> None:
    """Raise :class:`TrainingError` for a ``fit`` or ``evaluate`` whose result would not be that of one process."""
    reasons = list(_of_run(session)) if loop.kind == "fit" else []
    for reason in [*reasons, *_of_callbacks(arguments["callbacks"])]:
        refuse(reason)
    check_model(loop)
    if session.exact and (parts := sorted(set(_own_parts(loop.model)))):
        session.reporter.notice(
            f"This is a model of tf_keras, which is Keras 2, with code of your own in {', '.join(parts)}. Unlike that "
            "of Keras 3, such a model is not tried on parts of a batch, so weights are those of one process only if "
            "this code computes each row by itself, and losses are means over rows: not if it adds a sum to the loss, "
            "compares rows, clips by their common norm, or collects something of a batch. Keras 3 (import keras) "
            "checks it."
        )


def check_model(loop: Loop) -> None:
    """Raise :class:`TrainingError` for a model that is not equal; to be called again when all its layers are made."""
    for reason in _of_model(loop.model, loop.kind == "fit"):
        refuse(reason)


def _own_parts(model: Any) -> Iterator[str]:
    """What of a model's steps is the user's own code, which may do anything with the rows of a batch."""
    for name in ("train_step", "test_step", "compute_loss"):
        if getattr(type(model), name) is not getattr(tf_keras.Model, name):
            yield f"{name}()"
    for layer in model._flatten_layers():
        if own_classes(type(layer)) or isinstance(layer, tf_keras.layers.Lambda):
            yield type(layer).__name__
    for loss in tf.nest.flatten(model.loss):
        if loss is not None and not isinstance(loss, str) and is_own_code(loss):
            yield str(getattr(loss, "name", None) or getattr(loss, "__name__", type(loss).__name__))


def _of_run(session: Session) -> Iterator[str]:
    if not session.exact:
        yield f"--strategy {session.strategy.name}"
    if session.context.checkpoints.asked:
        yield "a checkpoint (--checkpoint-dir, --resume)"


def _of_model(model: Any, training: bool) -> Iterator[str]:
    if type(model.distribute_strategy) is not type(tf.distribute.get_strategy()) or tf.distribute.has_strategy():
        yield "a model under a tf.distribute strategy"
    if model.autotune_steps_per_execution:
        yield "steps_per_execution='auto'"
    layers = list(model._flatten_layers())
    if any(layer.compute_dtype != layer.variable_dtype for layer in layers):
        yield "mixed precision"
    if any(isinstance(layer, RNN) and layer.stateful for layer in layers):
        yield "a stateful recurrent layer"
    if not training:
        return
    if any(isinstance(layer, BatchNormalizationBase) and layer.trainable for layer in layers):
        yield "BatchNormalization (unless frozen by trainable = False)"
    for optimizer in tf.nest.flatten(model.optimizer):
        if isinstance(optimizer, BaseLossScaleOptimizer):
            yield "an optimizer with loss scaling (mixed precision)"
        elif optimizer is not None and not isinstance(optimizer, _OPTIMIZERS):
            yield f"optimizer {type(optimizer).__name__}"


def _of_callbacks(callbacks: Any) -> Iterator[str]:
    flat = tf.nest.flatten(getattr(callbacks, "callbacks", callbacks) or [])
    if any(isinstance(callback, tf_keras.callbacks.BackupAndRestore) for callback in flat):
        yield "callback BackupAndRestore"
