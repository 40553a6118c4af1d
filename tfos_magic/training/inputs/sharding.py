"""Which rows of a global batch are this rank's, for every kind of input that Keras takes.

The global batch is what the user wrote. Of its n rows rank r of N takes ``[r * n // N, (r + 1) * n // N)``, so the
ranks together take each row once, in the order of one plain process, whatever n and N are. A dataset that a feed made
is already shared out and is left alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src import tree
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from tensorflow.python.data.experimental.ops import distribute

from tfos_magic.errors import TrainingError
from tfos_magic.training.inputs.digests import with_digest, with_numbers_digest
from tfos_magic.training.inputs.marks import PYTHON, inputs_of, is_sharded
from tfos_magic.training.inputs.own_rows import is_cut, is_own, mark_cut
from tfos_magic.training.inputs.passes import repeated_shuffles
from tfos_magic.training.step import checked_rows


def rank_slice(rows: Any, rank: int, size: int) -> tuple[Any, Any]:
    """First row and end of this rank's share of ``rows`` rows; an int, an array or an integer tensor alike."""
    return rank * rows // size, (rank + 1) * rows // size


def shard_adapter(adapter: Any, rank: int, size: int) -> Any:
    """Give the ``tf.data.Dataset`` of a Keras data adapter, with only this rank's rows of each global batch.

    Where all ranks have the whole batches, elements carry their digests.
    """
    if isinstance(adapter, ArrayDataAdapter) and (dataset := _shard_arrays(adapter, rank, size)) is not None:
        return dataset
    dataset = adapter.get_tf_dataset()
    if isinstance(adapter, TFDatasetAdapter) and is_sharded(dataset):
        return own_batches(dataset, rank, size) if is_own(dataset) else dataset
    if isinstance(adapter, GeneratorDataAdapter):
        dataset = dataset._inputs()[0]  # without Keras's prefetch, which reads the further ahead the longer it waits
    return shard_batches(dataset, rank, size, with_digest)


def shard_batches(dataset: Any, rank: int, size: int, joined: Callable[[Any, Any], Any] | None = None) -> Any:
    """Cut each batch of ``dataset`` to this rank's rows; sparse, ragged and nested elements included.

    ``joined(rows, batch)`` gives what becomes of them, where it is not the rows alone.
    """

    @tf.autograph.experimental.do_not_convert
    def cut(*element: Any) -> Any:
        batch, count = _batch_of(dataset, element)
        begin, end = rank_slice(count, rank, size)
        rows = tf.nest.map_structure(lambda leaf: _cut_leaf(leaf, begin, end), batch)
        return rows if joined is None else joined(rows, batch)

    @tf.autograph.experimental.do_not_convert
    def cut_in_turn(*element: Any) -> Any:
        # A map with an operation that has state, such as this one which does nothing, runs in turn.
        with tf.control_dependencies([tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="tfos_in_turn")]):
            return cut(*element)

    # What has state runs no further ahead than in one process, where TensorFlow adds a prefetch to what does not end
    # with one.
    if any(repeated_shuffles(dataset)):
        while type(dataset).__name__ == "_PrefetchDataset":
            dataset = dataset._inputs()[0]
        return dataset.map(cut_in_turn).prefetch(1)
    if _runs_python(dataset):
        return dataset.map(cut_in_turn).prefetch(0 if type(dataset).__name__ == "_PrefetchDataset" else 1)
    return dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(tf.data.AUTOTUNE)


def own_batches(dataset: Any, rank: int, size: int) -> Any:
    """Give ``dataset``, whose batches are global, with a rank's share of as many rows in each, from its own rows.

    As in ``tf.distribute``, a batch of 64 rows for two workers is 32 rows of each. Where nothing tells how many rows
    batches have, as after a map over them, each is cut into one for each rank.
    """
    if size == 1 or is_cut(dataset):
        return mark_cut(dataset)
    known = int(distribute.compute_batch_size(dataset))
    if known > 0:
        begin, end = rank_slice(known, rank, size)
        return mark_cut(dataset.rebatch(end - begin))

    @tf.autograph.experimental.do_not_convert
    def parts(*element: Any) -> Any:
        batch, count = _batch_of(dataset, element)
        # Ranks take the larger parts in turn, so that those of one step have as many rows together as a batch.
        slices = [rank_slice(count, (rank + number) % size, size) for number in range(size)]
        sizes = tf.stack([end - begin for begin, end in slices])
        ends = tf.cumsum(sizes)

        @tf.autograph.experimental.do_not_convert
        def part(number: Any) -> Any:
            begin, end = ends[number] - sizes[number], ends[number]
            return tf.nest.map_structure(lambda leaf: _cut_leaf(leaf, begin, end), batch)

        return tf.data.Dataset.range(size).filter(lambda number: sizes[number] > 0).map(part)

    return mark_cut(dataset.flat_map(parts))


def _batch_of(dataset: Any, element: tuple[Any, ...]) -> tuple[Any, Any]:
    """The batch that a function over ``dataset`` is given as ``element``, and its number of rows."""
    batch = element[0] if len(element) == 1 and not isinstance(dataset.element_spec, tuple) else element
    if (rows := checked_rows(batch)) is None:
        raise TrainingError("a dataset element has no tensor with rows: give fit() batches of rows, like (x, y)")
    return batch, rows


def _runs_python(dataset: Any) -> bool:
    """Whether ``dataset`` runs Python code, a generator's or a function's, for its elements."""
    graphs = (wrapper.function.graph for wrapper in dataset._functions())
    if any(operation.type in PYTHON for graph in graphs for operation in graph.get_operations()):
        return True
    return any(map(_runs_python, inputs_of(dataset)))


def _shard_arrays(adapter: ArrayDataAdapter, rank: int, size: int) -> Any | None:
    """Slice the row numbers that Keras shuffles and batches, then gather only this rank's rows of the arrays.

    Keras itself makes the row numbers, from an adapter over ``arange``, so the shuffle is that of a plain process.
    None where an input is not a plain array.
    """
    arrays = tree.lists_to_tuples(array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow"))
    if not all(leaf is None or isinstance(leaf, np.ndarray) or _is_dense(leaf) for leaf in tree.flatten(arrays)):
        return None
    arrays = tree.map_structure(lambda leaf: None if leaf is None else tf.convert_to_tensor(leaf), arrays)
    numbers = copy.copy(adapter)
    numbers._inputs = (np.arange(adapter._num_samples),)

    @tf.autograph.experimental.do_not_convert
    def gather(batch: Any) -> Any:
        begin, end = rank_slice(tf.shape(batch, tf.int64)[0], rank, size)
        mine = batch[begin:end]
        rows = tree.map_structure(lambda leaf: None if leaf is None else tf.gather(leaf, mine), arrays)
        return with_numbers_digest(rows, batch)

    # In the thread that prefetches: a parallel map costs more at the start of an epoch than it gains.
    return numbers.get_tf_dataset().map(gather).prefetch(tf.data.AUTOTUNE)


def _cut_leaf(leaf: Any, begin: Any, end: Any) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        rest = leaf.dense_shape[1:]
        start = tf.concat([[begin], tf.zeros_like(rest)], 0)
        part = tf.sparse.slice(leaf, start, tf.concat([[end - begin], rest], 0))
        columns = [known if known is not None else rest[place] for place, known in enumerate(leaf.shape[1:])]
        return tf.SparseTensor(part.indices, part.values, tf.stack([part.dense_shape[0], *columns]))
    if isinstance(leaf, tf.RaggedTensor) or (_is_dense(leaf) and leaf.shape.rank != 0):
        return leaf[begin:end]
    return leaf


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) and not isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor))
