"""Which rows of a global batch are this rank's, for every kind of input that Keras takes.

The global batch is what the user wrote. Of its n rows rank r of N takes ``[r * n // N, (r + 1) * n // N)``, so the
ranks together take each row once, in the order of one plain process, whatever n and N are. A dataset that a feed made
is already shared out and is left alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras.src import tree
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from tfos_magic.errors import TrainingError
from tfos_magic.training.inputs.digests import with_digest, with_numbers_digest
from tfos_magic.training.step import checked_rows

_MARK, _ALIKE, _SKIP, _ASKED = "_tfos_sharded", "_tfos_ends_alike", "_tfos_skip", "_tfos_asked"
_NUMBERS, _BY_RANK, _BATCH = "_tfos_numbers", "_tfos_by_rank", "_tfos_batch"
ONE_FOR_ONE = (
    "_MapDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
    "_OptionsDataset",
    "_RepeatDataset",
    "_TakeDataset",
    "_SkipDataset",
    "_ZipDataset",
    "_ConcatenateDataset",
    "CacheDataset",
)
# These keep the rows that ranks have together, though not in the batches of the feed.
_ROW_BY_ROW = (
    "_BatchDataset",
    "_ParallelBatchDataset",
    "_UnbatchDataset",
    "_RestructuredDataset",
    "_FilterDataset",
    "_ShuffleDataset",
    "_FlatMapDataset",
    "_InterleaveDataset",
    "_ParallelInterleaveDataset",
    *(name for name in ONE_FOR_ONE if name not in ("_TakeDataset", "_SkipDataset", "_ZipDataset")),
)
# In these, step ``k`` of an epoch is step ``k`` of the source's.
_IN_STEP = ("_MapDataset", "_ParallelMapDataset", "_PrefetchDataset", "_OptionsDataset", "_TakeDataset")
PYTHON = ("GeneratorDataset", "PyFunc", "PyFuncStateless", "EagerPyFunc")
_D = TypeVar("_D")
Numbers = Callable[[int], npt.NDArray[np.int64]]
"""Gives the numbers of the rows of a step, in the order in which they come."""


def mark_sharded(
    dataset: _D,
    *,
    ends_alike: bool = False,
    skip: Callable[[int], None] | None = None,
    asked: bool = False,
    by_rank: bool = False,
    numbers: Callable[[], Numbers] | None = None,
    batch: int = 0,
) -> _D:
    """Declare that each rank's copy of ``dataset`` yields only its own share of every global batch; returns it.

    ``ends_alike`` says that all copies have as many batches, though nobody knows beforehand how many. ``skip`` says
    that what an iterator gives depends only on how many were read before it, and counts so many more as read.
    ``asked`` says that the cell itself asked for its share. ``by_rank`` says that the rows of a batch follow each other
    by rank; elsewhere ``numbers`` tells, of the epoch that begins next, which rows of the DataFrame a step has here.
    ``batch`` is the number of rows of a global batch, 0 where it is not known.
    """
    setattr(dataset, _BY_RANK, by_rank)
    setattr(dataset, _BATCH, batch)
    setattr(dataset, _NUMBERS, numbers)
    setattr(dataset, _MARK, True)
    setattr(dataset, _ASKED, asked)
    setattr(dataset, _ALIKE, ends_alike)
    setattr(dataset, _SKIP, skip)
    return dataset


def batch_of(dataset: Any) -> int:
    """How many rows a global batch of a marked ``dataset`` has, 0 where it is not known."""
    return int(getattr(dataset, _BATCH, 0))


def skip_of(dataset: Any) -> Callable[[int], None] | None:
    """What leaves epochs of ``dataset`` behind without reading them, where it was declared to have that."""
    return getattr(dataset, _SKIP, None)


def rows_by_step(dataset: Any) -> Numbers | None:
    """Which rows of the DataFrame each step of the next epoch of ``dataset`` has on this rank; None if not known."""
    if is_marked(dataset):
        numbers = getattr(dataset, _NUMBERS)
        return None if numbers is None else numbers()
    inputs = inputs_of(dataset) if type(dataset).__name__ in (*_IN_STEP, "_SkipDataset") else ()
    known = rows_by_step(inputs[0]) if len(inputs) == 1 else None
    if known is None or type(dataset).__name__ != "_SkipDataset":
        return known
    skipped = int(dataset._count)
    return lambda step: known(step + skipped)


def is_by_rank(dataset: Any) -> bool:
    """Whether the rows of each batch of ``dataset`` follow each other by rank."""
    if is_marked(dataset):
        return bool(getattr(dataset, _BY_RANK))
    return gives_whole_batches(dataset) and all(map(is_by_rank, filter(is_sharded, inputs_of(dataset))))


def ends_alike(dataset: Any) -> bool:
    """Whether all ranks' copies have as many elements: known ones, or those of a dataset that was declared so, through
    transformations that neither drop an element nor add one by what is in it."""
    if getattr(dataset, _ALIKE, False) or int(dataset.cardinality()) != tf.data.UNKNOWN_CARDINALITY:
        return True
    inputs = dataset._inputs()
    return bool(inputs) and type(dataset).__name__ in ONE_FOR_ONE and all(map(ends_alike, inputs))


def gives_whole_batches(dataset: Any) -> bool:
    """Whether each element of a sharded ``dataset`` is this rank's share of one global batch, in their order."""
    if getattr(dataset, _MARK, False):
        return True
    inputs = dataset._inputs() if type(dataset).__name__ in ONE_FOR_ONE else []
    return bool(inputs) and all(gives_whole_batches(source) or not is_sharded(source) for source in inputs)


def keeps_rows(dataset: Any) -> bool:
    """Whether what all ranks have of a sharded ``dataset`` are the rows that one process would have of it."""
    if gives_whole_batches(dataset):
        return True
    inputs = dataset._inputs() if type(dataset).__name__ in _ROW_BY_ROW else []
    drops = bool(tf.get_static_value(getattr(dataset, "_drop_remainder", tf.constant(False))))
    return bool(inputs) and not drops and all(map(keeps_rows, inputs))


def is_sharded(dataset: Any) -> bool:
    """Whether ``dataset`` comes from a marked one, through any chain of tf.data transformations.

    Raises :class:`TrainingError` where marked and unmarked sources meet, for their rows would not match.
    """
    kinds = _source_kinds(dataset)
    if len(kinds) > 1:
        raise TrainingError(
            "this dataset joins rows fed from a DataFrame, of which each worker holds its share, with rows that every "
            "worker holds in full, so they would not belong together. Put both into one DataFrame, or use arrays only."
        )
    return kinds == {True}


def is_marked(dataset: Any) -> bool:
    """Whether ``dataset`` itself was declared to give shares."""
    return bool(getattr(dataset, _MARK, False))


def is_fed(dataset: Any) -> bool:
    """Whether ``dataset`` comes from one of shares that the cell did not ask for, so that it may be taken for whole."""
    if is_marked(dataset):
        return not getattr(dataset, _ASKED)
    return any(map(is_fed, inputs_of(dataset)))


def has_shares(dataset: Any) -> bool:
    """Whether any source of ``dataset`` gives this rank rows of its own."""
    return is_marked(dataset) or any(map(has_shares, inputs_of(dataset)))


def inputs_of(dataset: Any) -> Sequence[Any]:
    """The datasets that ``dataset`` was made from; none where it has none, or is no dataset."""
    return dataset._inputs() if hasattr(dataset, "_inputs") else ()


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
        return dataset
    if isinstance(adapter, GeneratorDataAdapter):
        dataset = dataset._inputs()[0]  # without Keras's prefetch, which reads the further ahead the longer it waits
    return shard_batches(dataset, rank, size, with_digest)


def shard_batches(dataset: Any, rank: int, size: int, joined: Callable[[Any, Any], Any] | None = None) -> Any:
    """Cut each batch of ``dataset`` to this rank's rows; sparse, ragged and nested elements included.

    ``joined(rows, batch)`` gives what becomes of them, where it is not the rows alone.
    """

    @tf.autograph.experimental.do_not_convert
    def cut(*element: Any) -> Any:
        batch = element[0] if len(element) == 1 and not isinstance(dataset.element_spec, tuple) else element
        if (count := checked_rows(batch)) is None:
            raise TrainingError("a dataset element holds no tensor with rows: give fit() batches of rows, as (x, y)")
        begin, end = rank_slice(count, rank, size)
        rows = tf.nest.map_structure(lambda leaf: _cut_leaf(leaf, begin, end), batch)
        return rows if joined is None else joined(rows, batch)

    @tf.autograph.experimental.do_not_convert
    def cut_in_turn(*element: Any) -> Any:
        with tf.control_dependencies([tf.timestamp()]):  # a map with an operation that has state runs in turn
            return cut(*element)

    if _runs_python(dataset):
        # Python code may have state, so no more of it runs ahead than in one process: TensorFlow adds a prefetch to
        # what does not end with one.
        return dataset.map(cut_in_turn).prefetch(0 if type(dataset).__name__ == "_PrefetchDataset" else 1)
    return dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(tf.data.AUTOTUNE)


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


def _source_kinds(dataset: Any) -> set[bool]:
    if is_marked(dataset):
        return {True}
    inputs = inputs_of(dataset)
    kinds = [_source_kinds(source) for source in inputs]
    found = set().union(*kinds) if kinds else {False}
    if len(found) > 1 and type(dataset).__name__ == "_ZipDataset":
        return set().union(
            *(
                kind
                for kind, source in zip(kinds, inputs, strict=True)
                if True in kind or not _is_per_batch(source, inputs)
            )
        )
    return found


def _is_per_batch(source: Any, zipped: Sequence[Any]) -> bool:
    """Whether ``source`` has one number for each batch of the others, as ``enumerate()`` has: alike on all ranks."""
    scalars = all(spec.shape.rank == 0 for spec in tf.nest.flatten(source.element_spec) if hasattr(spec, "shape"))
    return scalars and not any(_has_single_rows(other) for other in zipped)


def _has_single_rows(dataset: Any) -> bool:
    if is_marked(dataset):
        return False
    return type(dataset).__name__ == "_UnbatchDataset" or any(map(_has_single_rows, dataset._inputs()))


def _cut_leaf(leaf: Any, begin: Any, end: Any) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        rest = leaf.dense_shape[1:]
        start = tf.concat([[begin], tf.zeros_like(rest)], 0)
        return tf.sparse.slice(leaf, start, tf.concat([[end - begin], rest], 0))
    if isinstance(leaf, tf.RaggedTensor) or (_is_dense(leaf) and leaf.shape.rank != 0):
        return leaf[begin:end]
    return leaf


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) and not isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor))
