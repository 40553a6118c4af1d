"""What is known of a dataset: that its elements are this rank's shares, and what was done to them since.

A mark is an attribute of the dataset that made the shares; what other datasets are is read off the way to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfos_magic.errors import TrainingError

_MARK, _ALIKE, _SKIP, _ASKED = "_tfos_sharded", "_tfos_ends_alike", "_tfos_skip", "_tfos_asked"
_NUMBERS, _BY_RANK, _BATCH = "_tfos_numbers", "_tfos_by_rank", "_tfos_batch"
_BY_WORLD = "_tfos_by_world"
STAND_IN = "_VariantDataset"
"""TensorFlow's class of what stands in a graph for a dataset that is an argument."""

ONE_FOR_ONE = (
    STAND_IN,
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
_arguments: list[Sequence[Any]] = []
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
    by_world: bool = False,
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
    setattr(dataset, _BY_WORLD, by_world)
    setattr(dataset, _BATCH, batch)
    setattr(dataset, _NUMBERS, numbers)
    setattr(dataset, _MARK, True)
    setattr(dataset, _ASKED, asked)
    setattr(dataset, _ALIKE, ends_alike)
    setattr(dataset, _SKIP, skip)
    return dataset


def is_by_world(dataset: Any) -> bool:
    """Whether which rows a global batch of ``dataset`` has follows from the number of ranks."""
    return bool(getattr(dataset, _BY_WORLD, False)) or any(map(is_by_world, inputs_of(dataset)))


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
    inputs = inputs_of(dataset)
    return bool(inputs) and type(dataset).__name__ in ONE_FOR_ONE and all(map(ends_alike, inputs))


def gives_whole_batches(dataset: Any) -> bool:
    """Whether each element of a sharded ``dataset`` is this rank's share of one global batch, in their order."""
    if getattr(dataset, _MARK, False):
        return True
    inputs = inputs_of(dataset) if type(dataset).__name__ in ONE_FOR_ONE else []
    return bool(inputs) and all(gives_whole_batches(source) or not is_sharded(source) for source in inputs)


def keeps_rows(dataset: Any) -> bool:
    """Whether what all ranks have of a sharded ``dataset`` are the rows that one process would have of it."""
    if gives_whole_batches(dataset):
        return True
    inputs = inputs_of(dataset) if type(dataset).__name__ in _ROW_BY_ROW else []
    drops = bool(tf.get_static_value(getattr(dataset, "_drop_remainder", tf.constant(False))))
    return bool(inputs) and not drops and all(map(keeps_rows, inputs))


def is_sharded(dataset: Any) -> bool:
    """Whether ``dataset`` comes from a marked one, through any chain of tf.data transformations.

    Raises :class:`TrainingError` where marked and unmarked sources meet, for their rows would not match.
    """
    kinds = _source_kinds(dataset)
    if len(kinds) > 1:
        raise TrainingError(
            "this dataset joins rows fed from a DataFrame, of which each worker has only its share, with rows that "
            "every worker has in full, so they would not match. Put both into one DataFrame, or use arrays only."
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
    """The datasets that ``dataset`` was made from; none where it has none, or is no dataset.

    What stands in a graph for an argument is made from the datasets that the function was called with, and that have
    its elements.
    """
    if type(dataset).__name__ == STAND_IN and _arguments:
        return [each for each in _arguments[-1] if each.element_spec == dataset.element_spec] or _arguments[-1]
    return dataset._inputs() if hasattr(dataset, "_inputs") else ()


@contextmanager
def called_with(datasets: Sequence[Any]) -> Iterator[None]:
    """In the block a function is traced, or called, with ``datasets``."""
    _arguments.append([real for each in datasets for real in (inputs_of(each) if _stands_in(each) else [each])])
    try:
        yield
    finally:
        _arguments.pop()


def _stands_in(dataset: Any) -> bool:
    return type(dataset).__name__ == STAND_IN


def _source_kinds(dataset: Any) -> set[bool]:
    if is_marked(dataset):
        return {True}
    inputs = inputs_of(dataset)
    kinds = [_source_kinds(source) for source in inputs]
    all_kinds = set().union(*kinds) if kinds else {False}
    if len(all_kinds) > 1 and type(dataset).__name__ == "_ZipDataset":
        return set().union(
            *(
                kind
                for kind, source in zip(kinds, inputs, strict=True)
                if True in kind or not _is_per_batch(source, inputs)
            )
        )
    return all_kinds


def _is_per_batch(source: Any, zipped: Sequence[Any]) -> bool:
    """Whether ``source`` has one number for each batch of the others, as ``enumerate()`` has: alike on all ranks."""
    scalars = all(spec.shape.rank == 0 for spec in tf.nest.flatten(source.element_spec) if hasattr(spec, "shape"))
    return scalars and not any(_has_single_rows(other) for other in zipped)


def _has_single_rows(dataset: Any) -> bool:
    if is_marked(dataset):
        return False
    return type(dataset).__name__ == "_UnbatchDataset" or any(map(_has_single_rows, inputs_of(dataset)))
