"""Whether ``map()`` on a dataset of shares gives the rows that it gives where one process has the whole batch.

Each worker maps its own rows of a batch. A function of each row by itself gives the same rows on however many workers;
one that looks at others, such as ``y - tf.reduce_mean(y)``, does not, nor does one that pads rows to the longest. Both
show when functions map made-up rows, and two parts of them: nothing is read of the data themselves.

Not seen is what made-up rows do not show: functions that draw random numbers, run Python code or raise
for these rows (files to open, images to decode), that look at others above some value only, or follow a
transformation other than those of ``_PASSING``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.util import structure

from tfos_magic.errors import TrainingError
from tfos_magic.training.firststep.batches import apart, taken
from tfos_magic.training.firststep.kept import Kept, drawing_apart
from tfos_magic.training.firststep.laws import Law
from tfos_magic.training.firststep.madeup import FEWEST, UNKNOWN_LENGTH, CannotTell, MadeUp
from tfos_magic.training.inputs.map_states import refuse_states
from tfos_magic.training.inputs.marks import ONE_FOR_ONE, PYTHON, batch_of, has_shares, inputs_of, is_fed, is_marked
from tfos_magic.training.keras_seam.data.input_pipelines import has_state, operations
from tfos_magic.training.logs.progress import Reporter

MOST = 2048
"""Made-up rows: as many as a global batch has, where that is known, so that ``rows[:8]`` shows."""

MOST_BYTES = 16 << 20
SEEDS = (1, 2, 3, 4, 5)
"""Of several made-up batches, for what one row decides for all may come out alike in one."""

_TOLERANCE = 1e-3

_MAPS = ("_MapDataset", "_ParallelMapDataset")
_FLAT = ("_FlatMapDataset", "_InterleaveDataset", "_ParallelInterleaveDataset")
_MOST_ELEMENTS = 64
_PASSING = {*ONE_FOR_ONE, "_ShuffleDataset", "_FilterDataset"} - {*_MAPS, "_ZipDataset"}
_READING = {"ReadVariableOp", "VarHandleOp", "ResourceGather", "ResourceGatherNd", "Assert", "CheckNumerics"} | {
    "StatefulPartitionedCall", "While", "If", "Case",
    "LookupTableFindV2", "LookupTableSizeV2", "HashTableV2", "MutableHashTableV2",
}  # fmt: skip
"""Types of operations that count as having a state, and neither change one nor draw from it."""

_REMEDY = (
    "Give all rows one length, with --pad COLUMN=VALUE or to_tensor(shape=[None, N]), or let the model mask them, as "
    "Embedding(mask_zero=True) does."
)

Element = Any


@dataclass(frozen=True)
class Padding:
    """A tensor of an element, by its number among them, is longer by ``more`` in each dimension where a batch has
    longer rows, filled with ``value``; None where that is not one value."""

    leaf: int
    more: tuple[int, ...]
    value: Any


def paddings(dataset: Any) -> tuple[Padding, ...]:
    """How elements of ``dataset`` are padded to the longest row of a batch; the same on all ranks.

    Raises :class:`TrainingError` where a row becomes another one by the rows beside it.
    """
    refuse_states(dataset)
    if not _is_mapped(dataset):
        return ()
    paddings_by_leaf: dict[int, Padding] = {}
    rows = _rows_for(dataset)
    both = np.flatnonzero(apart(rows)), np.flatnonzero(~apart(rows))
    for made in (MadeUp(True, rows), *(MadeUp(False, rows, seed) for seed in SEEDS)):
        try:
            wholes = _elements(dataset, made, np.arange(rows))
            parts = [_elements(dataset, made, numbers) for numbers in both]
        except Exception:  # whatever a user's function raises for rows that are none of its own
            continue
        if any(len(mapped) != len(wholes) for mapped in parts):
            raise _refusal(dataset)
        for numbers, mapped in zip(both, parts, strict=True):
            for whole, part in zip(wholes, mapped, strict=True):
                pairs = zip(tf.nest.flatten(whole), tf.nest.flatten(part), strict=True)
                for leaf, (of_all, of_part) in enumerate(pairs):
                    if padding := _compared(dataset, leaf, of_all, of_part, numbers, rows):
                        paddings_by_leaf[leaf] = padding
    return tuple(paddings_by_leaf.values())


def _rows_for(dataset: Any) -> int:
    """How many made-up rows show what a map does with the rows of a whole batch of ``dataset``."""
    sources = list(_sources(dataset))
    leaves = [spec for source in sources for spec in tf.nest.flatten(source.element_spec)]
    row = sum(spec.dtype.size * int(np.prod([n or UNKNOWN_LENGTH for n in spec.shape[1:]])) for spec in leaves)
    batch = min((batch_of(source) for source in sources), default=0)
    rows = min(batch, MOST, max(MOST_BYTES // max(row, 1), FEWEST)) or FEWEST
    rows = max(rows, 4)
    return rows - (rows % 3 == 0)  # or a part would be the same rows when they are reversed


def _sources(dataset: Any) -> Iterator[Any]:
    """The marked datasets that ``dataset`` comes from."""
    if is_marked(dataset):
        yield dataset
    else:
        for source in inputs_of(dataset):
            yield from _sources(source)


def _elements(dataset: Any, make: MadeUp, numbers: Any) -> list[Element]:
    """What ``dataset`` gives of the rows ``numbers`` of a made-up batch: an element for each of its sources."""
    kind, inputs = type(dataset).__name__, inputs_of(dataset)
    if is_marked(dataset) or not has_shares(dataset):
        return [taken(tf.nest.map_structure(make.anew(), dataset.element_spec), numbers)]
    if kind == "_ZipDataset":
        chosen = product(*(_elements(source, make, numbers) for source in inputs))
        return [structure.nest.pack_sequence_as(dataset._datasets, one) for one in map(list, chosen)]
    given = [element for source in inputs for element in _elements(source, make, numbers)]
    if kind in _PASSING:
        return given
    if kind not in (*_MAPS, *_FLAT):
        raise CannotTell
    function, spec = dataset._map_func.function, inputs[0].element_spec
    if any(map(_is_unknowable, operations(function.graph))):
        raise CannotTell
    mapped = [function(*structure.to_tensor_list(spec, element)) for element in given]
    if kind in _FLAT:
        made = [tf.data.experimental.from_variant(variant, dataset.element_spec) for (variant,) in mapped]
        return [element for source in made for element in source.take(_MOST_ELEMENTS)]
    return [structure.from_tensor_list(dataset.element_spec, list(tensors)) for tensors in mapped]


def widened(element: Element, padded: tuple[Padding, ...]) -> Element:
    """An element with more padding than it has; its ragged tensors are as they were."""
    leaves = tf.nest.flatten(element)
    for padding in padded:
        leaf = leaves[padding.leaf]
        if isinstance(leaf, tf.SparseTensor):
            leaves[padding.leaf] = tf.SparseTensor(leaf.indices, leaf.values, leaf.dense_shape + list(padding.more))
            continue
        for axis, more in enumerate(padding.more):
            shape = [more if i == axis else length for i, length in enumerate(leaf.shape)]
            leaf = tf.concat([leaf, tf.fill(shape, tf.constant(padding.value, leaf.dtype))], axis)
        leaves[padding.leaf] = leaf
    return tf.nest.pack_sequence_as(element, leaves)


def refuse_padding(model: Any, laws: dict[Any, Law], reporter: Reporter) -> None:
    """Refuse, by the laws of a step on rows with more padding beside the same with less, what padding changes."""
    if any(law not in (Law.CONSTANT, Law.UNKNOWN) for law in laws.values()):
        raise TrainingError(
            f"Padding changes what model {model.name!r} computes, and map() on a fed DataFrame pads rows to the "
            f"longest in a batch, of which each worker has only its own rows. {_REMEDY}"
        )
    if not laws:
        note_padding(f"model {model.name!r}", reporter)


def note_padding(model: str, reporter: Reporter) -> None:
    """Say that padding may change what ``model``, as it is to be called, computes."""
    reporter.notice(
        "map() on a fed DataFrame pads rows to the longest in a batch, of which each worker has only its own rows. "
        f"Where {model} does not mask them, results differ from those of one process. {_REMEDY}"
    )


def check_predicted(model: Any, dataset: Any, reporter: Reporter) -> None:
    """Say where padding may change what ``model`` predicts for ``dataset``, and raise as :func:`paddings` does."""
    padded = paddings(dataset)
    if padded and not _is_indifferent(model, dataset, padded):
        note_padding(f"model {model.name!r}", reporter)


def _is_indifferent(model: Any, dataset: Any, padded: tuple[Padding, ...]) -> bool:
    """Whether a model is known to predict the same with more padding, which it is asked for made-up rows."""
    if not model.built or any(padding.value is None for padding in padded):
        return False
    with drawing_apart():
        state = Kept(model)
        before = state.values()
        try:
            rows = _rows_for(dataset)
            element = _elements(dataset, MadeUp(True, rows), np.arange(rows))[0]
            predictions = [tf.nest.flatten(model.predict_step(given)) for given in (element, widened(element, padded))]
            return all(_is_same(_array(a), _array(b)) for a, b in zip(*predictions, strict=True))
        except Exception:  # whatever a model raises for rows that are none of its own
            return False
        finally:
            state.restore(before)


def _is_mapped(dataset: Any) -> bool:
    if is_marked(dataset) or not has_shares(dataset):
        return False
    return type(dataset).__name__ in (*_MAPS, *_FLAT) or any(map(_is_mapped, inputs_of(dataset)))


def _is_unknowable(kind: str) -> bool:
    reading = kind in _READING or "Dataset" in kind
    return kind in PYTHON or "Random" in kind or (has_state(kind) and not reading)


def _compared(dataset: Any, leaf: int, whole: Any, part: Any, numbers: Any, rows: int) -> Padding | None:
    """How a tensor of all rows differs from that of the rows ``numbers``; None where it does not."""
    if whole is None:
        return None
    if isinstance(whole, tf.RaggedTensor):
        pairs = zip(_tensors(tf.gather(whole, numbers)), _tensors(part), strict=True)
        if all(_is_same(a, b) for a, b in pairs):
            return None
        raise _refusal(dataset)
    of_all, of_part = _array(whole), _array(part)
    if _is_same(of_all, of_part):
        return None
    if (
        of_part.ndim != of_all.ndim
        or of_part.ndim == 0
        or len(of_all) % rows
        or len(of_part) * rows != len(of_all) * len(numbers)
    ):
        raise _refusal(dataset)
    # A row may have become several, one after another, or in several rounds of all rows.
    times, rest = len(of_all) // rows, of_all.shape[1:]
    beside = of_all.reshape(rows, times, *rest)[numbers].reshape(-1, *rest)
    after = of_all.reshape(times, rows, *rest)[:, numbers].reshape(-1, *rest)
    for expected in (beside, after):
        inside = tuple(slice(length) for length in of_part.shape)
        if _is_same(expected[inside], of_part):
            more = tuple(a - b for a, b in zip(expected.shape, of_part.shape, strict=True))
            outside = np.ones(expected.shape, bool)
            outside[inside] = False
            filled = set(expected[outside].tolist())
            return Padding(leaf, more, filled.pop() if len(filled) == 1 else None) if any(more) else None
    raise _refusal(dataset)


def _tensors(ragged: Any) -> list[Any]:
    return [_array(tensor) for tensor in (ragged.flat_values, *ragged.nested_row_lengths())]


def _array(leaf: Any) -> Any:
    leaf = tf.sparse.to_dense(leaf) if isinstance(leaf, tf.SparseTensor) else leaf
    return np.asarray(tf.cast(leaf, tf.float32) if leaf.dtype in (tf.float16, tf.bfloat16) else leaf)


def _is_same(a: Any, b: Any) -> bool:
    if a.shape != b.shape or a.dtype.kind != "f" or np.array_equal(a, b):
        return bool(np.array_equal(a, b))
    size = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    return bool(np.allclose(a, b, rtol=0.0, atol=_TOLERANCE * size, equal_nan=True))


def _refusal(dataset: Any) -> TrainingError:
    remedy = "Compute it in Spark first (df.select, df.agg)" if is_fed(dataset) else "Map before tfos.shard()"
    return TrainingError(
        f"map() on {'a fed DataFrame' if is_fed(dataset) else 'a shard'} looks at more than one row of a batch, but "
        f"each worker has only its own rows, so the rows would differ from those of one process. {remedy}, or in a "
        "layer or the train_step of the model, which is checked; or train with one worker (-n 1), or use "
        "--per-worker-batches: each worker's rows are then their own batch."
    )
