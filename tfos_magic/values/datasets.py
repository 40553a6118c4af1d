"""Datasets of ``tf.data`` by value: as the calls that made them, which are made again where they are read.

A dataset keeps what it was made of in attributes: its inputs, its numbers, its Python functions. So a pipeline that a
notebook has made is the one that a cell has, with its seeds; only where reading has got to stays behind. Nothing here
imports TensorFlow before such an object is read: who holds one to be written has it.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfos_magic.values import random_state

_CALLS = {
    "_BatchDataset": ("batch", "batch_size", "drop_remainder"),
    "_ParallelBatchDataset": ("batch", "batch_size", "drop_remainder", "num_parallel_calls", "deterministic"),
    "_PaddedBatchDataset": ("padded_batch", "batch_size", "padded_shapes", "padding_values", "drop_remainder"),
    "CacheDataset": ("cache", "filename"),
    "_FilterDataset": ("filter", "predicate"),
    "_FlatMapDataset": ("flat_map", "map_func"),
    "_InterleaveDataset": ("interleave", "map_func", "cycle_length", "block_length"),
    "_MapDataset": ("map", "map_func"),
    "_ParallelInterleaveDataset": (
        "interleave", "map_func", "cycle_length", "block_length", "num_parallel_calls"
    ),
    "_ParallelMapDataset": ("map", "map_func", "num_parallel_calls", "deterministic"),
    "_PrefetchDataset": ("prefetch", "buffer_size"),
    "_RepeatDataset": ("repeat", "count"),
    "_ShardDataset": ("shard", "num_shards", "index"),
    "_ShuffleDataset": ("shuffle", "buffer_size", "reshuffle_each_iteration"),
    "_SkipDataset": ("skip", "count"),
    "_TakeDataset": ("take", "count"),
    "_TakeWhileDataset": ("take_while", "predicate"),
    "_UniqueDataset": ("unique",),
    "_WindowDataset": ("window", "size", "shift", "stride", "drop_remainder"),
}  # fmt: skip
"""By TensorFlow's classes the method that makes them and its arguments, each of which is an attribute."""

_FUNCTIONS = ("map_func", "predicate")
_DETERMINISTIC = {"default": None, "true": True, "false": False}


def reduce(dataset: Any) -> Any:
    """How a dataset is made anew. Raises ``PicklingError`` for those of which that is not known."""
    inputs: tuple[Any, ...] = ()
    given: Any = ()
    seed = None
    match type(dataset).__name__:
        case "_TensorSliceDataset" | "_TensorDataset" as kind if _is_plain(dataset):
            how = "from_tensor_slices" if kind == "_TensorSliceDataset" else "from_tensors"
            given = dataset._structure, list(dataset._tensors)
        case "_RangeDataset":
            how = "range"
            given = ([int(part) for part in (dataset._start, dataset._stop, dataset._step)], dataset._output_type.name)
        case "TextLineDatasetV2" | "TFRecordDatasetV2" as kind:
            how = kind.removesuffix("V2")
            parallel = {"num_parallel_reads": dataset._num_parallel_reads} if kind == "TFRecordDatasetV2" else {}
            options = {"compression_type": dataset._compression_type, "buffer_size": dataset._buffer_size, **parallel}
            given = (_plain(dataset._filenames), {name: _plain(value) for name, value in options.items()})
        case "_ZipDataset":
            how, inputs = "zip", (dataset._datasets,)
        case "_ConcatenateDataset":
            how, inputs = "concatenate", (dataset._input_dataset, dataset._dataset_to_concatenate)
        case "_OptionsDataset":
            how, inputs, given = "with_options", (dataset._input_dataset,), (dataset.options(),)
        case "_UnbatchDataset":  # of what is made dense by a map, and has its old structure
            how, inputs = "unbatch", (dataset._input_dataset._input_dataset._input_dataset,)
        case "_FlatMapDataset" if generator := _generator_of(dataset):
            how, given = "from_generator", generator
        case kind if kind in _CALLS:
            how, *names = _CALLS[kind]
            inputs, given = (dataset._input_dataset,), {name: _argument(dataset, name) for name in names}
            seed = _seeds_of(dataset)
        case _ if graph := _graph_of(dataset):
            how, given = "from_variant", (graph, dataset.element_spec)
        case kind:
            raise pickle.PicklingError(
                f"a tf.data.Dataset made by {kind.strip('_').removesuffix('Dataset')} reads data where it was made: "
                "make it in the cell"
            )
    known = {name: value for name, value in vars(dataset).items() if not name.startswith("_")}  # such as class_names
    return empty, (_kind(dataset, how), known, how, inputs, given, seed)


def _kind(dataset: Any, how: str) -> Any:
    """The class of what will be made."""
    import tensorflow as tf

    return (
        type(tf.data.experimental.from_variant(dataset._variant_tensor, dataset.element_spec))
        if how == "from_variant"
        else type(dataset)
    )


@dataclass(frozen=True)
class Unbuilt:
    """A dataset without anything in it, and what :func:`build` makes it of."""

    dataset: Any
    known: dict[str, Any]
    made_by: tuple[Any, ...]

    @property
    def begins_anew(self) -> bool:
        """Whether it comes in an order that follows from a seed and from the passes before."""
        how, _, given, seeds = self.made_by
        return how == "shuffle" and any(seeds) and bool(given["reshuffle_each_iteration"])


def empty(kind: Any, known: dict[str, Any], *made_by: Any) -> Unbuilt:
    """A dataset of that ``kind``, which is there to be referred to, and is yet to be built."""
    return Unbuilt(kind.__new__(kind), known, made_by)


def build(unbuilt: Iterable[Unbuilt]) -> None:
    """Make datasets, inputs before what is made of them; random states stay as they are."""
    states = random_state.taken()
    try:
        for each in unbuilt:
            made = _make(*each.made_by)
            each.dataset.__class__ = type(made)
            each.dataset.__dict__.update({**made.__dict__, **each.known})
    finally:
        random_state.restored(states)


def _make(how: str, inputs: Any, given: Any, seed: Any) -> Any:
    import tensorflow as tf

    match how:
        case "from_tensor_slices" | "from_tensors":
            return getattr(tf.data.Dataset, how)(tf.nest.pack_sequence_as(*given))
        case "range":
            return tf.data.Dataset.range(*given[0], output_type=given[1])
        case "TextLineDataset" | "TFRecordDataset":
            return getattr(tf.data, how)(given[0], **given[1])
        case "from_variant":
            return tf.data.experimental.from_variant(tf.raw_ops.DatasetFromGraph(graph_def=given[0]), given[1])
        case "zip":
            return tf.data.Dataset.zip(inputs[0])
        case "from_generator":
            return tf.data.Dataset.from_generator(given[0], args=given[1] or None, output_signature=given[2])
        case "shuffle":
            return _shuffled(inputs[0], given, seed)
        case _ if isinstance(given, tuple):
            return getattr(inputs[0], how)(*inputs[1:], *given)
    return _traced(lambda: getattr(inputs[0], how)(**given), seed)


def _shuffled(dataset: Any, given: dict[str, Any], seeds: Any) -> Any:
    """A shuffle by the very ``seeds`` that were drawn for it; without, by such as are drawn here."""
    import tensorflow as tf

    made = dataset.shuffle(**given)
    if any(seeds):
        made._seed, made._seed2 = (tf.constant(seed, tf.int64) for seed in seeds)
        made._variant_tensor_attr = tf.raw_ops.ShuffleDatasetV3(
            input_dataset=dataset._variant_tensor,
            buffer_size=made._buffer_size,
            seed=made._seed,
            seed2=made._seed2,
            seed_generator=tf.raw_ops.DummySeedGenerator(),
            reshuffle_each_iteration=made._reshuffle_each_iteration,
            **made._common_args,
        )
    return made


def _traced(make: Callable[[], Any], seed: int | None) -> Any:
    """What ``make`` gives, whose function draws as it did where TensorFlow had this global ``seed``."""
    from tensorflow.python.eager import context

    if seed is None:
        return make()
    here = context.context()
    before, here._seed = here._seed, seed
    try:
        return make()
    finally:
        here._seed = before


def _seeds_of(dataset: Any) -> Any:
    """Of a shuffle its two seeds, of a dataset with a function TensorFlow's seed when that was traced, if any."""
    if type(dataset).__name__ == "_ShuffleDataset":
        return int(dataset._seed), int(dataset._seed2)
    return next((f.function.graph.seed for f in map(dataset.__dict__.get, ("_map_func", "_predicate")) if f), None)


def _argument(dataset: Any, name: str) -> Any:
    value = getattr(dataset, f"_{name}")
    if name in _FUNCTIONS:
        if getattr(value._func, "__module__", "").startswith("tfos_magic."):
            raise pickle.PicklingError("a tf.data.Dataset of fed rows reads them where it was made")
        return value._func
    if name == "deterministic":
        return _DETERMINISTIC[value]
    plain = _plain(value)
    return plain.item() if isinstance(plain, np.generic) and name != "padding_values" else plain


def _plain(value: Any) -> Any:
    """Texts and NumPy's numbers for scalars, arrays for other tensors, in tuples and dicts."""
    import tensorflow as tf

    def plain(leaf: Any) -> Any:
        array = leaf.numpy() if isinstance(leaf, tf.Tensor) else leaf
        if isinstance(array, np.ndarray) and array.dtype == object:
            return [text.decode() for text in array.ravel().tolist()]
        return array.decode() if isinstance(array, bytes) else array

    return tf.nest.map_structure(plain, value)


def _is_plain(dataset: Any) -> bool:
    """Whether its elements are tensors, and no ragged or sparse ones, whose parts are kept in another way."""
    import tensorflow as tf

    return all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(dataset._structure))


def _graph_of(dataset: Any) -> bytes:
    """What it is made of as TensorFlow has it; empty where that is Python code or other things of this process."""
    import tensorflow as tf

    graph = tf.compat.v1.GraphDef.FromString(dataset._as_serialized_graph().numpy())
    kinds = {
        node.op for part in (graph, *graph.library.function) for node in getattr(part, "node_def", None) or part.node
    }
    return b"" if any("PyFunc" in kind or "Generator" in kind for kind in kinds) else graph.SerializeToString()


def _generator_of(dataset: Any) -> tuple[Any, ...]:
    """The generator, arguments and signature of a ``from_generator``; empty for others."""
    function = dataset._map_func._func
    if getattr(function, "__qualname__", "") != "_from_generator.<locals>.flat_map_fn":
        return ()
    known = inspect.getclosurevars(function).nonlocals
    state = inspect.getclosurevars(known["get_iterator_id_fn"]).nonlocals
    generator = state["generator_state"]._generator
    if getattr(generator, "__module__", "").startswith("tfos_magic."):
        raise pickle.PicklingError("a tf.data.Dataset of fed rows reads them where it was made")
    return generator, tuple(state["args"]), known["output_signature"]
