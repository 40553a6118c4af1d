"""Sparse gradients of the global batch, slice by slice as one process has them.

What Keras's optimizers make of an index that occurs twice differs from what they make of its sum. So slices that come
from rows, as words of a text do, are brought together one by one, and slices that every rank has, as positions in it
do, are added up over ranks. Which is which the graph tells: what an index is computed of.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfos_magic.training.collectives import Collectives

HALF = (tf.float16, tf.bfloat16)
_SAME_ORDER = ("Reshape", "Identity", "Cast")
_BY_ELEMENT = ("SelectV2", "AddV2", "Sub", "Mul", "FloorMod", "FloorDiv", "Maximum", "Minimum")


def combine(
    collectives: Collectives, gradient: tf.IndexedSlices, rows: tf.Tensor, total: tf.Tensor, copied: tf.Tensor
) -> tf.IndexedSlices:
    """Average a sparse gradient over ranks, weighted by ``rows``, of which all ranks have ``total``.

    Where ``copied``, a boolean scalar, is true, every rank has the whole batch, and so all slices of it.
    """
    weighted, parts = _weighted(gradient.values, rows), _parts(gradient.indices)
    pieces, places = [weighted], [gradient.indices]
    if len(parts) > 1:
        sizes = [tf.size(part) for part in parts]
        pieces, places = (tf.split(whole, sizes, num=len(parts)) for whole in (weighted, gradient.indices))
    combined_slices: list[tuple[tf.Tensor, tf.Tensor]] = []
    for of_rows, everywhere in ((True, copied), (False, tf.constant(True))):
        chosen = [i for i, part in enumerate(parts) if _is_of_rows(part) == of_rows]
        if chosen:
            values, indices = (tf.concat([source[i] for i in chosen], 0) for source in (pieces, places))
            combined_slices.append(_together(collectives, values, indices, everywhere))
    values, indices = (tf.concat(joined, 0) for joined in zip(*combined_slices, strict=True))
    mean = tf.math.divide_no_nan(values, tf.cast(total, values.dtype))
    return tf.IndexedSlices(tf.cast(mean, gradient.dtype), indices, gradient.dense_shape)


def _weighted(values: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    exact = tf.cast(values, tf.float32) if values.dtype in HALF else values
    return tf.math.multiply_no_nan(exact, tf.cast(rows, exact.dtype))


def _together(
    collectives: Collectives, values: tf.Tensor, indices: tf.Tensor, everywhere: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The slices of all ranks one by one and in order, or added up by their place where ranks have the same ones.

    Ranks whose texts are shorter have fewer of them. What TensorFlow summed by index already stays so.
    """
    unique = _are_unique(indices)
    values, indices, places = collectives.concat([values, indices, tf.range(tf.size(indices))])
    if unique:
        indices, places = tf.unique(indices)
        return tf.math.unsorted_segment_sum(values, places, tf.size(indices)), indices
    size = tf.reduce_max(tf.concat([[-1], places], 0)) + 1
    first, last = (kind(indices, places, size) for kind in (tf.math.unsorted_segment_min, tf.math.unsorted_segment_max))
    return tf.cond(
        everywhere & tf.reduce_all(first == last),
        lambda: (tf.math.unsorted_segment_sum(values, places, size), first),
        lambda: (values, indices),
    )


def _parts(indices: tf.Tensor) -> list[tf.Tensor]:
    """What ``indices`` are put together of, in order: the lookups of a table that is read several times, and what one
    lookup has side by side, such as labels and what is drawn beside them."""
    if tf.executing_eagerly():
        return [indices]
    operation = indices.op
    if operation.type == "ConcatV2" and tf.get_static_value(operation.inputs[-1]) == 0:
        return [part for piece in operation.inputs[:-1] for part in _parts(piece)]
    if operation.type in _SAME_ORDER:
        sources = operation.inputs[:1]
    else:
        sources = [each for each in operation.inputs if operation.type in _BY_ELEMENT and _is_alike(each, indices)]
    return next((parts for source in sources if len(parts := _parts(source)) > 1), [indices])


def _is_alike(one: tf.Tensor, other: tf.Tensor) -> bool:
    """Whether what is computed of two tensors, element by element, has the elements of ``one`` in their places."""
    return one.shape.rank == other.shape.rank and (1 not in one.shape or one.shape == other.shape)


def _are_unique(indices: tf.Tensor) -> bool:
    """Whether the graph makes ``indices`` by ``tf.unique``, as the lookup of sparse rows does."""
    if tf.executing_eagerly():
        return False
    operation = indices.op
    while operation.type in _SAME_ORDER:
        operation = operation.inputs[0].op
    return str(operation.type).startswith("Unique")


def _is_of_rows(indices: tf.Tensor) -> bool:
    """Whether the graph computes ``indices`` of the rows of a step, or of how many there are. Eagerly nobody knows."""
    if tf.executing_eagerly():
        return True
    seen: set[int] = set()
    waiting = [indices]
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in seen or not hasattr(tensor, "op") or tensor.dtype == tf.resource:
            continue
        seen.add(id(tensor))
        operation = tensor.op
        if operation.type == "Placeholder":
            outer = [taken for taken, inner in getattr(operation.graph, "captures", []) if inner is tensor]
            if not outer:
                return True
            waiting += outer
        elif operation.type == "IteratorGetNext" or "Random" in operation.type:
            return True
        elif not _is_inner_length(operation):
            waiting += operation.inputs
    return False


def _is_inner_length(operation: Any) -> bool:
    """Whether it reads the length of an axis other than the first of some tensor, which has no part in rows."""
    if operation.type != "StridedSlice" or operation.inputs[0].op.type != "Shape":
        return False
    begin = tf.get_static_value(operation.inputs[1])
    return begin is not None and operation.get_attr("shrink_axis_mask") == 1 and begin[0] != 0
