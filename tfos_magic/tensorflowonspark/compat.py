"""Differences between versions of TensorFlow that programs leave to this module."""

from __future__ import annotations

from typing import Any


def export_saved_model(model: Any, export_dir: str, is_chief: bool = False) -> None:
    """Write a SavedModel of a Keras model, on the chief; its signature has the names that Keras 2 gave."""
    if is_chief:
        from tfos_magic.training.keras_seam.as_written.keras2 import export_as_keras2

        export_as_keras2(model, export_dir)


def disable_auto_shard(options: Any) -> None:
    """Let each worker have all elements of a dataset with these ``tf.data.Options``."""
    import tensorflow as tf

    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF


def is_gpu_available() -> bool:
    """Whether TensorFlow has a GPU here."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))
