"""TensorFlow's objects by value: variables, tensors, functions and tables as arrays and options.

Nothing here imports TensorFlow before such an object is read: who holds one to be written has it.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from tfos_magic.values import datasets, originals

_PROXIES = ("_DictWrapper", "_TupleWrapper")
ONE_REPLICA = ("MirroredStrategy", "OneDeviceStrategy", "CentralStorageStrategy", "_DefaultDistributionStrategy")
"""Strategies of ``tf.distribute`` that are taken for the one that does nothing: the workers share out every batch."""

_UNFILLED = "NullInitializer"
"""What fills the table of a Keras layer whose vocabulary is not known yet, as before ``adapt()``."""
_OF_A_MANAGER = ("max_to_keep", "keep_checkpoint_every_n_hours", "step_counter", "checkpoint_interval", "init_fn")


def is_variable(obj: Any) -> bool:
    """Whether this is a ``tf.Variable``."""
    tf = _tensorflow(obj)
    return tf is not None and isinstance(obj, tf.Variable)


def is_of_a_graph(obj: Any) -> bool:
    """Whether it is a tensor of a function that was traced, which is of no use outside of it, here or elsewhere."""
    tf = _tensorflow(obj)
    return tf is not None and bool(tf.is_symbolic_tensor(obj))


def array_of(obj: Any) -> npt.NDArray[Any]:
    """The value of a tensor or variable. Raises ``PicklingError`` for those that have none here."""
    try:
        return np.asarray(obj.numpy())
    except Exception as error:  # of a graph, or of a type that NumPy does not know
        raise pickle.PicklingError(f"{kind_of(obj)} has no value that could be sent ({_first_line(error)})") from None


def options_of(variable: Any) -> dict[str, Any]:
    """What :func:`variable` needs besides the value."""
    return {
        "name": variable.name.partition(":")[0],
        "trainable": variable.trainable,
        "shape": variable.shape.as_list() if variable.shape.rank is not None else None,
        "dtype": variable.dtype.name,
        "synchronization": variable.synchronization,
        "aggregation": variable.aggregation,
        "constraint": variable.constraint,
    }


def variable(value: npt.NDArray[Any], options: dict[str, Any], travels_by: str) -> Any:
    """A ``tf.Variable``, known by a token of :mod:`originals`."""
    import tensorflow as tf

    options = {**options, "shape": tf.TensorShape(options["shape"])}
    with tf.init_scope():
        if options["shape"].is_compatible_with(value.shape):
            made = tf.Variable(value, **options)
        else:  # the step that made it failed before it had a value
            from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

            made = UninitializedVariable(**options)
    originals.note(made, travels_by)
    return made


def assigned(original: Any, value: npt.NDArray[Any], options: dict[str, Any]) -> bool:
    """Give an ``original`` variable the value of one that it has become elsewhere, if it can have that."""
    before = {**options_of(original), "constraint": options["constraint"]}  # a function that travelled is another one
    if before != options or not original.shape.is_compatible_with(value.shape):
        return False
    original.assign(value)
    return True


def kind_of(obj: Any) -> str:
    """What an object is, for people to read."""
    tf = sys.modules.get("tensorflow")
    if tf is not None and isinstance(obj, tf.data.Dataset):
        return "tf.data.Dataset"
    return type(obj).__qualname__.strip("_")


def reduce(obj: Any, plain: bool) -> Any:
    """How an object of TensorFlow is made anew; ``NotImplemented`` for others, which know that themselves."""
    tf = _tensorflow(obj)
    if tf is None:
        return NotImplemented
    if isinstance(obj, tf.data.Dataset) and not plain:
        return datasets.reduce(obj)
    if isinstance(obj, (tf.data.Dataset, tf.data.Iterator)):
        raise pickle.PicklingError(
            f"a {kind_of(obj)} reads data where it was made: bring back the arrays instead, or make it in the notebook"
        )
    if type(obj).__name__ in _PROXIES and not plain:  # which say that they are what they hold
        return type(obj), (obj.__wrapped__,)
    if isinstance(obj, tf.RaggedTensor) and plain:
        return list, (obj.to_list(),)
    if isinstance(obj, tf.Tensor) and not isinstance(obj, tf.__internal__.CompositeTensor):
        array = array_of(obj)
        return array.__reduce_ex__(5) if plain else (_tensor, (array, obj.dtype.name))
    if isinstance(obj, tf.distribute.Strategy) and type(obj).__name__ in ONE_REPLICA:
        return _strategy, ()
    if isinstance(obj, tf.types.experimental.PolymorphicFunction):
        return _function, (obj.python_function, _options_of_function(obj))
    if isinstance(obj, (tf.lookup.StaticHashTable, tf.lookup.experimental.MutableHashTable)):
        kinds = {"key_dtype": obj.key_dtype.name, "value_dtype": obj.value_dtype.name}
        static = isinstance(obj, tf.lookup.StaticHashTable)
        if static and type(obj._initializer).__name__ == _UNFILLED:
            return _unfilled_table, (array_of(obj._default_value), kinds)
        content = [array_of(part) for part in obj.export()]
        return _static_table if static else _mutable_table, (*content, array_of(obj._default_value), kinds)
    if isinstance(obj, tf.summary.SummaryWriter) and getattr(obj, "_closed", False):
        return _writer, ()
    if isinstance(obj, (tf.summary.SummaryWriter, tf.saved_model.experimental.TrackableResource)):
        raise pickle.PicklingError(f"a {kind_of(obj)} holds a resource of the process that made it")
    return NotImplemented


def is_checkpoint(obj: Any) -> bool:
    """Whether this is a ``tf.train.Checkpoint`` or a manager of one, which look into what they are made of."""
    tf = _tensorflow(obj)
    return tf is not None and type(obj) in (tf.train.Checkpoint, tf.train.CheckpointManager)


def is_manager(obj: Any) -> bool:
    """Whether this keeps checkpoints of one that is made before."""
    return type(obj).__name__ == "CheckpointManager"


def made_of(obj: Any) -> tuple[Any, ...]:
    """What :func:`make_checkpoint` makes a checkpoint or a manager of."""
    if is_manager(obj):
        return obj._checkpoint, obj._checkpoint_prefix, {name: getattr(obj, f"_{name}", None) for name in _OF_A_MANAGER}
    named = {name: value for name, value in vars(obj).items() if name != "root" and not name.startswith("_")}
    return obj._root, named, None if obj._save_counter is None else int(obj._save_counter)


def make_checkpoint(obj: Any, made_of: tuple[Any, ...]) -> None:
    """Fill an empty checkpoint or manager, when what it keeps is whole."""
    import tensorflow as tf

    if is_manager(obj):
        checkpoint, prefix, options = made_of
        folder, name = os.path.split(prefix)
        tf.train.CheckpointManager.__init__(obj, checkpoint, folder, checkpoint_name=name, **options)
        return
    root, named, saves = made_of
    with tf.init_scope():
        tf.train.Checkpoint.__init__(obj, root, **named)
        if saves is not None:
            obj.save_counter.assign(saves)


def _tensorflow(obj: Any) -> Any:
    """TensorFlow, where it is loaded and ``obj`` may be of it; most objects are not, and many are asked."""
    tf = sys.modules.get("tensorflow")
    known = any(kind.__module__.startswith("tensorflow") for kind in type(obj).__mro__)
    return tf if known and hasattr(tf, "data") else None


def _tensor(value: npt.NDArray[Any], dtype: str) -> Any:
    import tensorflow as tf

    with tf.init_scope():
        return tf.constant(value, dtype)


def _options_of_function(function: Any) -> dict[str, Any]:
    return {
        "input_signature": function.input_signature,
        "autograph": function._autograph,
        "jit_compile": function._jit_compile,
        "reduce_retracing": function._reduce_retracing,
        "experimental_autograph_options": function._experimental_autograph_options,
    }


def _function(function: Any, options: dict[str, Any]) -> Any:
    import tensorflow as tf

    return tf.function(function, **options)


def _strategy() -> Any:
    import tensorflow as tf

    return tf.distribute.get_strategy()


def _writer() -> Any:
    import tensorflow as tf

    return tf.summary.create_noop_writer()


def _static_table(keys: Any, values: Any, default: Any, kinds: dict[str, str]) -> Any:
    import tensorflow as tf

    with tf.init_scope():
        initializer = tf.lookup.KeyValueTensorInitializer(keys, values, **kinds)
        return tf.lookup.StaticHashTable(initializer, tf.constant(default, kinds["value_dtype"]))


def _unfilled_table(default: Any, kinds: dict[str, str]) -> Any:
    import tensorflow as tf

    class NullInitializer(tf.lookup.KeyValueTensorInitializer):
        """Fills nothing in, as Keras's own class of this name."""

        def __init__(self) -> None:
            self._key_dtype, self._value_dtype = (tf.as_dtype(kinds[kind]) for kind in ("key_dtype", "value_dtype"))

        key_dtype = property(lambda self: self._key_dtype)
        value_dtype = property(lambda self: self._value_dtype)

        def initialize(self, table: Any) -> None:
            """Leave it as it is."""

    with tf.init_scope():
        return tf.lookup.StaticHashTable(NullInitializer(), tf.constant(default, kinds["value_dtype"]))


def _mutable_table(keys: Any, values: Any, default: Any, kinds: dict[str, str]) -> Any:
    import tensorflow as tf

    with tf.init_scope():
        table = tf.lookup.experimental.MutableHashTable(
            **kinds, default_value=tf.constant(default, kinds["value_dtype"])
        )
        table.insert(tf.constant(keys, kinds["key_dtype"]), tf.constant(values, kinds["value_dtype"]))
        return table


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
