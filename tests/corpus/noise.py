"""Noise made constant: what a step draws for each row is the same for all rows, in every step and process.

A program with noise trains to other weights with every seed, so it is compared with this in place of its noise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import tensorflow as tf

_NORMAL = ("normal", "truncated_normal", "stateless_normal", "stateless_truncated_normal")
_UNIFORM = ("uniform", "stateless_uniform")
_SPREAD = 0.6180339887  # multiples of the golden ratio lie evenly on a circle


def constant_noise(stack: ExitStack) -> None:
    """Replace what is drawn in graphs until ``stack`` closes; initial values and data, drawn eagerly, stay."""
    for name in (*_NORMAL, *_UNIFORM):
        _replace(stack, name)
    _wrap(stack, tf.nn.experimental, "stateless_dropout", _dropout)


def _wrap(stack: ExitStack, owner: Any, name: str, around: Callable[..., Any]) -> None:
    stack.enter_context(mock.patch.object(owner, name, partial(around, getattr(owner, name))))


def _replace(stack: ExitStack, name: str) -> None:
    signature = inspect.signature(getattr(tf.random, name))

    def draw(original: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            return original(*args, **kwargs)
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        of = call.arguments
        if name in _NORMAL:
            return of["mean"] + of["stddev"] * tf.cast(3.4 * _even(of["shape"]) - 1.7, of["dtype"])
        low, high = of["minval"], 1 if of["maxval"] is None else of["maxval"]
        low, high = tf.cast(low, tf.float64), tf.cast(high, tf.float64)
        return tf.cast(low + (high - low) * _even(of["shape"]), of["dtype"])

    _wrap(stack, tf.random, name, draw)


def _even(shape: Any) -> tf.Tensor:
    """Numbers from 0 to 1 of this shape, spread over all axes but the first, along which they are the same."""
    shape = tf.cast(tf.convert_to_tensor(shape), tf.int32)
    row = tf.concat([[1], shape[1:]], 0)[: tf.size(shape)]
    spread = tf.reshape((1.0 + tf.cast(tf.range(tf.reduce_prod(row)), tf.float64)) * _SPREAD % 1.0, row)
    return tf.broadcast_to(spread, shape)


def _dropout(original: Any, x: Any, rate: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
    return tf.where(_even(tf.shape(x)) >= rate, x / (1 - rate), tf.zeros_like(x))
