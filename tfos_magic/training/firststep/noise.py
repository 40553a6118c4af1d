"""Random numbers that do not depend on how many rows there are, so that a step of part of the rows draws the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from tfos_magic.training.keras_seam.random_numbers import install_around

_STATELESS: dict[str, Callable[..., Any]] = {
    "random_standard_normal": tf.random.stateless_normal,
    "random_uniform": tf.random.stateless_uniform,
    "random_uniform_int": tf.random.stateless_uniform,
    "truncated_normal": tf.random.stateless_truncated_normal,
}
_OF_SHAPE = ("uniform", "normal")
_CHOICES = ("multinomial",)
_ORDERS = ("shuffle",)


class RowlessNoise:
    """Draws one row for all rows where ``trying``, until ``stack`` closes; :meth:`begin` begins the same draws anew."""

    def __init__(self, stack: ExitStack, trying: Callable[[], bool]) -> None:
        self._drawn, self._trying = 0, trying
        install_around(stack, self._draw)

    def begin(self) -> None:
        self._drawn = 0

    def _draw(self, original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        if not self._trying():  # but an input pipeline draws, in a thread of its own
            return original(**arguments)
        self._drawn += 1
        name = original.__name__
        if name in _STATELESS:
            # TensorFlow keeps an operation with a state of its own as long as its seeds are the same.
            ranges = {key: arguments[key] for key in ("minval", "maxval") if key in arguments}
            dtype = arguments.get("dtype") or arguments["maxval"].dtype
            return _STATELESS[name](arguments["shape"], [1, self._drawn], **ranges, dtype=dtype)
        if any(kind in name for kind in _CHOICES):
            likely = tf.argmax(arguments["logits"], 1, arguments.get("output_dtype") or tf.int64)
            return tf.repeat(likely[:, tf.newaxis], arguments["num_samples"], 1)
        if any(kind in name for kind in _ORDERS):
            return original(**arguments)
        shape = tf.convert_to_tensor(arguments["shape"]) if "shape" in arguments else tf.zeros([0], tf.int32)
        if any(kind in name for kind in _OF_SHAPE) and "parameterized" not in name and tf.size(shape) > 0:
            row = original(**{**arguments, "shape": tf.concat([tf.ones_like(shape[:1]), shape[1:]], 0)})
            return tf.broadcast_to(row, shape)
        return tf.ones_like(original(**arguments))
