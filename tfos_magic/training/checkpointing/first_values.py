"""Which data depend on nothing but how often they were begun, so that epochs can be left behind without being read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfos_magic.training.inputs.marks import skip_of

Skip = Callable[[int], None]

# An epoch of these begins each of their inputs once. ``repeat`` does so more often, ``concatenate`` perhaps never.
_ONCE = frozenset(
    {
        "_AssertCardinalityDataset",
        "_BatchDataset",
        "_DenseToRaggedDataset",
        "_FilterDataset",
        "_MapDataset",
        "_OptionsDataset",
        "_PaddedBatchDataset",
        "_ParallelBatchDataset",
        "_ParallelMapDataset",
        "_PrefetchDataset",
        "_RebatchDataset",
        "_RestructuredDataset",
        "_ShuffleDataset",
        "_SkipDataset",
        "_TakeDataset",
        "_UnbatchDataset",
        "_ZipDataset",
    }
)


def feeds_begun(dataset: Any) -> list[Skip] | None:
    """Give, for each feed that an epoch of ``dataset`` begins, what leaves epochs of it behind; none for other data.

    None where elements depend on something else: random operations, Python functions, files, feeds begun as often as
    the data say.
    """
    if (skip := skip_of(dataset)) is not None:
        return [skip]
    if not _has_feeds(dataset):
        return None if _has_outer_state(dataset) else []
    if type(dataset).__name__ not in _ONCE or any(map(_is_stateful, dataset._functions())):
        return None
    skips: list[Skip] = []
    for source in dataset._inputs():
        if (below := feeds_begun(source)) is None:
            return None
        skips += below
    return skips


def kinds(dataset: Any) -> set[str]:
    """The classes of the datasets that ``dataset`` is made of, as far down as TensorFlow tells."""
    sources = dataset._inputs() if hasattr(dataset, "_inputs") else []
    return {type(dataset).__name__}.union(*map(kinds, sources))


def _has_feeds(dataset: Any) -> bool:
    sources = dataset._inputs() if hasattr(dataset, "_inputs") else []
    return skip_of(dataset) is not None or any(map(_has_feeds, sources))


def _is_stateful(function: Any) -> bool:
    return bool(function.function.function_def.signature.is_stateful)


def _has_outer_state(dataset: Any) -> bool:
    """Whether elements depend on anything but the dataset itself: random operations, Python functions, files."""
    try:
        dataset._as_serialized_graph(external_state_policy=tf.data.experimental.ExternalStatePolicy.FAIL)
        return False
    except (tf.errors.OpError, ValueError):
        return True
