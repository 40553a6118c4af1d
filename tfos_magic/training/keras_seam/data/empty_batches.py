"""Shares without rows in a cell's own loop: it sees batches of 0 rows, and Keras layers can be called on them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src import tree
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask

from tfos_magic.training.keras_seam.seams import wrap


def install(stack: ExitStack, is_wanted: Callable[[], bool]) -> None:
    """Let layers that are called on 0 rows, while ``is_wanted``, give 0 rows, until ``stack`` closes.

    Not every operation takes an empty batch (a fused convolution does not), so the layer is called on one row of zeros,
    and what it gives is cut off. Sparse and ragged inputs are left as they are.
    """
    within: list[bool] = []

    def call(original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        if within or not is_wanted():
            return original(layer, *args, **kwargs)
        within.append(True)
        try:
            return _called(original, layer, args, kwargs)
        finally:
            within.pop()

    wrap(stack, keras.layers.Layer, "__call__", call)


def _called(original: Any, layer: Any, args: Any, kwargs: Any) -> Any:
    leaves = tree.flatten(args)
    rows = next((leaf for leaf in leaves if _has_rows(leaf)), None)
    if rows is None or (rows.shape[0] or 0) > 0 or any(map(_is_composite, leaves)):
        return original(layer, *args, **kwargs)
    args, kwargs = tree.map_structure(lambda leaf: _filled(leaf) if _has_rows(leaf) else leaf, (args, kwargs))
    outputs = original(layer, *args, **kwargs)
    return tree.map_structure(lambda leaf: _cut(leaf, _missing(rows)) if _has_rows(leaf) else leaf, outputs)


def _has_rows(leaf: Any) -> bool:
    """Whether a leaf may be an array of rows, none of which is there or whose number is not known while tracing."""
    return isinstance(leaf, (tf.Tensor, np.ndarray)) and len(leaf.shape) > 0


def _is_composite(leaf: Any) -> bool:
    return isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor))


def _missing(leaf: Any) -> tf.Tensor:
    """How many rows are to stand in: 1 where ``leaf`` has none, an int32 scalar."""
    return tf.cast(tf.equal(tf.shape(leaf)[0], 0), tf.int32)


def _filled(leaf: Any) -> Any:
    """Add a row of zeros where there is none; without a branch, which XLA would not compile."""
    if (leaf.shape[0] or 0) > 0:
        return leaf
    tensor = tf.convert_to_tensor(leaf)
    if tensor.dtype != tf.string:  # padding is not taken for rows of two tensors, as of two lookups, where it is read
        return tf.pad(tensor, [[0, _missing(leaf)], *[[0, 0]] * (tensor.shape.rank - 1)])
    shape = tf.concat([[_missing(leaf)], tf.shape(leaf)[1:]], 0)
    return tf.concat([tensor, tf.fill(shape, "")], 0)


def _cut(output: Any, missing: tf.Tensor) -> Any:
    """Drop the row that a row of zeros gave. What has another length than the stand-in has no axis of rows."""
    if output.shape[0] not in (None, 1):
        return output
    cut = output[: tf.shape(output)[0] * (1 - missing)]
    if (mask := get_keras_mask(output)) is not None:
        set_keras_mask(cut, mask[: tf.shape(mask)[0] * (1 - missing)])
    return cut
