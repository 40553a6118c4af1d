"""What a cell saves of a model is compared between ranks: whether it does may hang on one worker's rows."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.saved_model import save as saved_models

from tfos_magic.training.keras_seam.seams import wrap
from tfos_magic.training.rank_session import Session

_PLACES = (
    (keras.Model, ("save", "save_weights", "export")),
    (keras.Layer, ("get_weights",)),
    (tf.train.Checkpoint, ("write", "save")),
    (tf.train.CheckpointManager, ("save",)),
)


def install(stack: ExitStack, session: Session, own_loop: Any) -> None:
    """Note, until ``stack`` closes, after how many steps of its own loops the cell takes a model's values.

    Not in ``fit``, whose callbacks act on logs of all ranks, and of which some are on rank 0 alone. What is traced to
    be saved computes on whole batches: nobody has shares where it is loaded.
    """

    def note(original: Any, *args: Any, **kwargs: Any) -> Any:
        if session.loop is None and session.trial is None and tf.executing_eagerly():
            session.saves.append(int(own_loop.steps_taken.numpy()))
        return on_whole_batches(original, *args, **kwargs)

    def on_whole_batches(original: Any, *args: Any, **kwargs: Any) -> Any:
        saving, own_loop.is_saving = own_loop.is_saving, True
        try:
            return original(*args, **kwargs)
        finally:
            own_loop.is_saving = saving

    wrap(stack, saved_models, "save_and_return_nodes", on_whole_batches)
    for owner, names in _PLACES:
        for name in names:
            wrap(stack, owner, name, note)
