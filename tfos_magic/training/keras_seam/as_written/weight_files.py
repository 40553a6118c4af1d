"""Files of weights by the names that programs for Keras 2 give, which Keras 3 wants with an ending of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfos_magic.errors import UsageError
from tfos_magic.training.keras_seam.seams import wrap

WEIGHTS, MODEL = ".weights.h5", ".keras"
_KNOWN = (".h5", MODEL)


def files_by_their_names(stack: ExitStack, notice: Callable[[str], None]) -> None:
    """Let checkpoints and weights be written and found without an ending until ``stack`` closes."""

    def checkpoint(original: Any, callback: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        ending = WEIGHTS if kwargs.get("save_weights_only") or (len(args) > 3 and args[3]) else MODEL
        if not str(filepath).endswith((ending, ".h5")):
            notice(f"Checkpoints are written to {filepath}{ending}: Keras 3 needs this ending.")
            filepath = f"{filepath}{ending}"
        kwargs.pop("options", None)
        if kwargs.pop("load_weights_on_restart", False) or kwargs.pop("period", 1) != 1:
            raise UsageError(
                "ModelCheckpoint no longer has load_weights_on_restart or period: load weights with "
                "model.load_weights(tf.train.latest_checkpoint(folder)), and give save_freq in batches."
            )
        return original(callback, filepath, *args, **kwargs)

    def save_weights(original: Any, model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("save_format", None)
        named = str(filepath)
        return apart(original, model, named if named.endswith(_KNOWN) else named + WEIGHTS, *args, **kwargs)

    def load_weights(original: Any, model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        there = next(
            (path for path in (f"{filepath}{WEIGHTS}", f"{filepath}{MODEL}") if tf.io.gfile.exists(path)), None
        )
        return original(model, there or filepath, *args, **kwargs)

    def latest(original: Any, checkpoint_dir: Any, *args: Any, **kwargs: Any) -> Any:
        return original(checkpoint_dir, *args, **kwargs) or _newest(str(checkpoint_dir))

    wrap(stack, keras.callbacks.ModelCheckpoint, "__init__", checkpoint)
    wrap(stack, keras.Model, "save_weights", save_weights)
    wrap(stack, keras.Model, "load_weights", load_weights)
    wrap(stack, tf.train, "latest_checkpoint", latest)


def apart(original: Callable[..., Any], model: Any, path: str, *args: Any, **kwargs: Any) -> Any:
    """Let Keras write a file elsewhere and move it to its place: all nodes may do so at once."""
    overwrites, target = (*args, kwargs.get("overwrite", True))[0], Path(path)
    if "://" in path or not (overwrites and target.parent.is_dir()):
        return original(model, path, *args, **kwargs)
    replace_files(target.parent, lambda folder: original(model, os.path.join(folder, target.name), *args, **kwargs))
    return None


def replace_files(target: Path, write: Callable[[str], object]) -> None:
    """Let ``write`` fill a folder of its own, and move its files into ``target``."""
    with tempfile.TemporaryDirectory(prefix=".tfos-", dir=target) as folder:
        write(folder)
        for file in sorted(Path(folder).rglob("*")):
            place = target / file.relative_to(folder)
            place.mkdir(exist_ok=True) if file.is_dir() else file.replace(place)


def _newest(folder: str) -> str | None:
    """The newest file of weights in a folder, without its ending, as checkpoints are named."""
    found = tf.io.gfile.glob(os.path.join(folder, f"*{WEIGHTS}"))
    newest = max(found, key=lambda path: (tf.io.gfile.stat(path).mtime_nsec, path), default=None)
    return newest.removesuffix(WEIGHTS) if newest else None
