"""The state of preprocessing layers on several ranks: counts and moments that are merged, and states that must agree.

Moments are float64 vectors of length 1 + 2 * n, for n positions: the number of values at each, their means, and the
sums of squares of what they differ by from these (Chan et al. 1983).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfos_magic.errors import TrainingError
from tfos_magic.training.collectives import Collectives

Array = np.ndarray[Any, Any]


def merge_counts(layer: Any, peers: Collectives) -> None:
    """Give the tables of a lookup layer the counts of all ranks, and so the same on each."""
    _merge_table(layer.token_counts, peers)
    if layer.output_mode == "tf_idf":
        _merge_table(layer.token_document_counts, peers)
        layer.num_documents.assign(peers.all_reduce([layer.num_documents.value()])[0])


def moments(layer: Any, batch: Any) -> Array:
    """The moments of a batch at the positions that ``layer``, a built ``Normalization``, keeps apart."""
    values = np.asarray(keras.ops.convert_to_tensor(batch, layer.compute_dtype)).astype(np.float64)
    # A column of scalars has one axis, though Keras, which batches it anew, builds the layer for two.
    reduced = layer._reduce_axis if layer._keep_axis else tuple(range(values.ndim))
    count = np.prod([values.shape[axis] for axis in reduced])
    if not count:
        return _no_moments(layer)
    mean, variance = values.mean(reduced), values.var(reduced)
    return np.concatenate([[count], mean.reshape(-1), count * variance.reshape(-1)])


def _no_moments(layer: Any) -> Array:
    return np.zeros(1 + 2 * int(np.prod(layer._mean_and_var_shape)))


def all_of(layer: Any, batches: Iterable[Array]) -> Array:
    """The moments of all rows of ``batches``, which may be none."""
    return reduce(lambda before, batch: pooled(np.stack([before, batch])), batches, _no_moments(layer))


def pooled(table: Array) -> Array:
    """The moments of all rows that the rows of ``table`` are moments of."""
    counts, (means, squares) = table[:, :1], np.split(table[:, 1:], 2, axis=1)
    total = counts.sum()
    mean = (counts * means).sum(0) / max(total, 1)
    return np.concatenate([[total], mean, (squares + counts * (means - mean) ** 2).sum(0)])


def assign_moments(layer: Any, batches: Iterable[Array]) -> None:
    """Make the mean and variance of a ``Normalization`` from the moments of batches, as its ``adapt()`` does."""
    shape, dtype = layer._mean_and_var_shape, keras.config.floatx()
    mean, variance, total = np.zeros(shape, dtype), np.zeros(shape, dtype), 0.0
    for batch in batches:
        count = float(batch[0])
        batch_mean, squares = (part.reshape(shape).astype(dtype) for part in np.split(batch[1:], 2))
        total += count
        weight = count / max(total, 1.0)
        new_mean = mean * (1.0 - weight) + batch_mean * weight
        batch_variance = squares / max(count, 1.0)
        variance = (variance + (mean - new_mean) ** 2) * (1.0 - weight)
        variance = variance + (batch_variance + (batch_mean - new_mean) ** 2) * weight
        mean = new_mean
    layer.adapt_mean.assign(mean)
    layer.adapt_variance.assign(variance)
    layer.finalize_state()


def check_alike(layer: Any, peers: Collectives) -> None:
    """Raise :class:`TrainingError` where ``layer``, adapted to what each rank has, is not the same on all ranks."""
    tokens, numbers = _state(layer)
    summary = peers.gather([zlib.crc32("\n".join(tokens).encode()), len(numbers)])
    alike = bool((summary == summary[0]).all())
    if alike:
        mean = np.asarray(peers.all_reduce([tf.constant(numbers)])[0]) / peers.size
        alike = bool(peers.gather([np.allclose(numbers, mean, 1e-4, 1e-6, equal_nan=True)]).all())
    if not alike:
        raise TrainingError(
            f"{type(layer).__name__} was adapted to different rows on every worker, because a loop over a fed "
            "DataFrame gives each worker its share. Give adapt() the dataset itself, as in "
            "layer.adapt(train.map(lambda x, y: x)), which merges the workers' results."
        )


def _state(layer: Any) -> tuple[list[str], Array]:
    if isinstance(layer, keras.layers.Normalization):
        return [], np.concatenate([np.ravel(layer.adapt_mean), np.ravel(layer.adapt_variance)]).astype(np.float64)
    if isinstance(layer, keras.layers.Discretization):
        return [], np.asarray(layer.bin_boundaries, np.float64)
    lookup = getattr(layer, "_lookup_layer", layer)
    weights = lookup.idf_weights_const if lookup.output_mode == "tf_idf" else []
    return [str(token) for token in lookup.get_vocabulary()], np.asarray(weights, np.float64)


def _merge_table(table: Any, peers: Collectives) -> None:
    local_tokens, counts = table.export()
    if local_tokens.dtype == tf.string:
        tokens, (counts,) = _concat_strings(local_tokens.numpy(), peers), peers.concat([counts])
    else:
        tokens, counts = peers.concat([local_tokens, counts])
    table.remove(local_tokens)
    unique, places = tf.unique(tokens)
    table.insert(unique, tf.math.unsorted_segment_sum(counts, places, tf.size(unique)))


def _concat_strings(local_tokens: Sequence[bytes], peers: Collectives) -> tf.Tensor:
    letters = np.frombuffer(b"".join(local_tokens), np.uint8).astype(np.int32)  # numbers that every wire carries
    lengths = np.asarray(peers.concat([tf.constant([len(token) for token in local_tokens], tf.int64)])[0])
    text = np.asarray(peers.concat([tf.constant(letters)])[0]).astype(np.uint8).tobytes()
    ends = np.cumsum(lengths)
    return tf.constant([text[end - length : end] for end, length in zip(ends, lengths, strict=True)], tf.string)
