"""The rows of labels and outputs that a loss is given: found, replaced, and brought together from all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfos_magic.training.logs.metrics import NUMBERS
from tfos_magic.training.step import Step

_ATTACHED = ("_keras_mask", "_keras_logits")
"""Attributes of Keras's outputs: their mask, and what a softmax or a sigmoid was made of, by which losses go instead.
"""

_OF_OTHER_LENGTHS = {
    "Where",
    "Unique",
    "UniqueV2",
    "DynamicPartition",
    "PartitionedCall",
    "StatefulPartitionedCall",
} | {f"{kind}{name}" for kind in ("", "Stateless") for name in ("If", "While")}
"""Operations that may give as many elements as what they are given says, or that hide such ones."""


def _is_tensor(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and len(leaf.shape) > 0


def _attached(leaf: Any, attribute: str) -> Any:
    return getattr(leaf, attribute, None) if _is_tensor(leaf) else None


def leaves_of(arguments: Sequence[Any]) -> list[Any]:
    """The tensors with rows among labels, outputs and weights, and what Keras has attached to these."""
    given = tf.nest.flatten(list(arguments))
    attached = [_attached(leaf, attribute) for attribute in _ATTACHED for leaf in given]
    return [
        *(tf.convert_to_tensor(leaf) for leaf in given if _is_tensor(leaf)),
        *(value for value in attached if value is not None),
    ]


def with_leaves(arguments: Sequence[Any], leaves: Sequence[Any]) -> Any:
    """The arguments with other tensors in the places of their :func:`leaves_of`."""
    given, rest = tf.nest.flatten(list(arguments)), iter(leaves)
    flat = [next(rest) if _is_tensor(leaf) else leaf for leaf in given]
    for attribute in _ATTACHED:
        for leaf, own in zip(flat, given, strict=True):
            if _attached(own, attribute) is not None:
                setattr(leaf, attribute, next(rest))
    return tf.nest.pack_sequence_as(list(arguments), flat)


def varied(leaf: Any, seed: int) -> Any:
    """Other numbers in a floating-point tensor, of the same signs; where all are zero, of both."""
    if not leaf.dtype.is_floating:
        return leaf
    drawn = tf.constant(np.random.default_rng(seed).uniform(-0.5, 0.5, leaf.shape), leaf.dtype)
    return leaf * (1 + drawn) if bool(tf.reduce_any(leaf != 0)) else drawn


def has_rows(leaf: Any, rows: int) -> bool:
    sent = isinstance(leaf, tf.Tensor) and (leaf.dtype.is_bool or leaf.dtype.name in NUMBERS)
    return sent and leaf.shape[0] == rows


def of_own_rows(loss: tf.Tensor, step: Step) -> tf.Tensor:
    """The loss of all rows, with the gradient by outputs for own rows, as one of a mean over ranks by their rows."""

    @tf.custom_gradient
    def shown(value: tf.Tensor) -> Any:
        return value, lambda upstream: tf.math.multiply_no_nan(upstream, tf.cast(step.scale(), upstream.dtype))

    return shown(loss)


def exchanged(leaves: list[Any], step: Step) -> list[Any]:
    """The ``leaves`` of all ranks, one after the other; where each has the whole batch, that batch once."""
    collectives, rows = step.collectives, tf.cast(step.rows, tf.int32)
    counts = tf.cast(step.summed(tf.one_hot(collectives.rank, collectives.size) * step.rows), tf.int32)
    begin = tf.where(step.copied, 0, tf.reduce_sum(counts[: collectives.rank]))
    end = tf.where(step.copied, rows, tf.reduce_sum(counts))

    @tf.custom_gradient
    def exchange(*local: tf.Tensor) -> Any:
        whole = [leaf[:end] for leaf in collectives.concat([leaf[:rows] for leaf in local])]
        for leaf, given in zip(whole, local, strict=True):
            leaf.set_shape([None, *given.shape[1:]])

        def back(*upstream: tf.Tensor) -> list[Any]:
            return [
                _with_zeros(leaf[begin : begin + rows], given) if given.dtype.is_floating else None
                for leaf, given in zip(upstream, local, strict=True)
            ]

        return whole, back

    numbers = [tf.cast(leaf, tf.int32) if leaf.dtype.is_bool else leaf for leaf in leaves]
    return [tf.cast(leaf, given.dtype) for leaf, given in zip(exchange(*numbers), leaves, strict=True)]


def _with_zeros(gradient: tf.Tensor, given: tf.Tensor) -> tf.Tensor:
    """A gradient for as many rows as were ``given``: a stand-in has none."""
    rows = tf.shape(given)[0] - tf.shape(gradient)[0]
    return tf.pad(gradient, [[0, rows], *[[0, 0]] * (gradient.shape.rank - 1)])


def number_follows_from(values: tf.Tensor, arguments: Sequence[Any]) -> bool:
    """Whether how many ``values`` there are may depend on what ``arguments`` hold, as it does after a mask."""
    if tf.executing_eagerly():
        return True
    known = {leaf.op for leaf in tf.nest.flatten(arguments) if isinstance(leaf, tf.Tensor)}
    waiting = [values.op]
    while waiting:
        if (operation := waiting.pop()) in known:
            continue
        if operation.type in _OF_OTHER_LENGTHS:
            return True
        known.add(operation)
        waiting += [tensor.op for tensor in operation.inputs]
    return False


def with_value_per_row(values: tf.Tensor, step: Step, loss: Any) -> tf.Tensor:
    """The ``values`` of a loss, of which a step fails where these are not as many as its rows, or a multiple."""
    count, rows = tf.shape(values, tf.int64)[0], tf.maximum(tf.cast(step.rows, tf.int64), 1)
    text = (
        f"Loss {getattr(loss, 'name', 'loss')!r} gives a mean over other rows than those of the batch. A worker has "
        "only part of them, so weights would differ from those of one process. Return a value for every row, 0 for "
        "those that do not count; or train with one worker (-n 1). Values and rows:"
    )
    whole = tf.logical_and(count > 0, tf.equal(count % rows, 0))
    with tf.control_dependencies([tf.debugging.Assert(whole, [text, count, rows])]):
        return tf.identity(values)
