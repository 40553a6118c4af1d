"""Inference: a Keras model or a SavedModel over the rows of a DataFrame."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfos_magic.errors import UsageError
from tfos_magic.frames.mapping import map_blocks
from tfos_magic.frames.source import source_of

_SIGNATURE = "serving_default"


def predict(
    model: Any,
    frame: Any,
    *,
    features: Sequence[str] | None = None,
    output: str | Sequence[str] = "prediction",
    batch_size: int = 1024,
    argmax: bool = False,
    classes: Sequence[str] | None = None,
    signature: str = _SIGNATURE,
    schema: Any = None,
) -> Any:
    """Add a model's predictions to ``frame``, one row for each row, in any partitioning; lazy where Spark is.

    Parameters
    ----------
    model: a Keras model, or the path of a ``.keras`` file or a SavedModel that every executor can read. A model travels
        with the job, and is loaded once in each Python worker.
    features: the columns to feed, by default all of them. A model of one input takes them side by side, cast to its
        dtype and reshaped to its shape; one of several inputs takes a column for each, in this order.
    output: name of the new column; for a model of several outputs a name for each, in their order.
    batch_size: rows in one call of the model.
    argmax: give the index of the greatest value instead of all values; ``classes`` gives the name of that class.
    signature: which signature of a SavedModel.
    schema: as for :func:`map_blocks`.

    Raises :class:`UsageError` where the model's inputs or outputs are not those named.
    """
    columns = tuple(features) if features is not None else tuple(source_of(frame).specs)
    names = (output,) if isinstance(output, str) else tuple(output)
    prediction = Prediction(model, columns, names, tuple(classes or ()), argmax or bool(classes), signature)
    # Columns need not be identifiers: parameters stand for them by their place.
    feed = dict(zip(prediction.parameters, columns, strict=True))
    return map_blocks(prediction, frame, feed_dict=feed, block_rows=batch_size, schema=schema)


@dataclass
class Prediction:
    """A model as a tensor function; its parameters are the features by their place."""

    model: Any
    features: tuple[str, ...]
    outputs: tuple[str, ...]
    classes: tuple[str, ...]
    argmax: bool
    signature: str

    @property
    def parameters(self) -> list[str]:
        return [f"feature_{i}" for i in range(len(self.features))]

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in self.parameters])

    def __call__(self, **columns: Any) -> dict[str, Any]:
        made = _in_order(self._ready(*_inputs(self._ready, [columns[name] for name in self.parameters])))
        if len(made) != len(self.outputs):
            raise UsageError(f"the model has {len(made)} outputs, output names {len(self.outputs)}: name each one")
        return {name: self._chosen(value) for name, value in zip(self.outputs, made, strict=True)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Where it is unpickled it is about to be traced, and Keras cannot load a model while a graph is traced.
        self.__dict__.update(state)
        self._ready = _loaded(self.model, self.signature)

    def _chosen(self, value: Any) -> Any:
        import tensorflow as tf

        if not self.argmax:
            return value
        if value.shape.rank != 2:
            raise UsageError(f"argmax is for an output of one value for each class, and this one is {value.shape}")
        if self.classes and value.shape[1] != len(self.classes):
            raise UsageError(f"the model has {value.shape[1]} classes, and {len(self.classes)} names are given")
        chosen = tf.argmax(value, axis=1)
        return tf.gather(tf.constant(self.classes), chosen) if self.classes else chosen


@dataclass
class _Loaded:
    """A model with the dtypes and shapes of its inputs, in order."""

    call: Any
    specs: list[Any]

    def __call__(self, *inputs: Any) -> Any:
        return self.call(*inputs)


def _loaded(model: Any, signature: str) -> _Loaded:
    if not isinstance(model, (str, Path)):
        return _of_keras(model)
    if Path(model).suffix in (".keras", ".h5"):
        import keras

        return _of_keras(keras.models.load_model(model, compile=False))
    return _of_saved_model(str(model), signature)


def _of_keras(model: Any) -> _Loaded:
    if not callable(model) or not getattr(model, "inputs", None):
        raise UsageError("a built Keras model is needed, or the path of one: give the model an Input, or fit it first")
    specs = [(each.dtype, tuple(each.shape)) for each in model.inputs]

    def call(*inputs: Any) -> Any:
        return model(inputs[0] if len(specs) == 1 else list(inputs), training=False)

    return _Loaded(call, specs)


def _of_saved_model(path: str, signature: str) -> _Loaded:
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    if signature not in loaded.signatures:
        raise UsageError(
            f"the SavedModel has no signature {signature!r}, it has {', '.join(loaded.signatures) or 'none'}"
        )
    function = loaded.signatures[signature]
    named = function.structured_input_signature[1]

    def call(*inputs: Any) -> Any:
        assert loaded is not None, "the variables live as long as the model does"
        return function(**dict(zip(named, inputs, strict=True)))

    return _Loaded(call, [(spec.dtype.name, tuple(spec.shape)) for spec in named.values()])


def _inputs(model: _Loaded, columns: list[Any]) -> list[Any]:
    import tensorflow as tf

    if len(model.specs) == 1:
        dtype, shape = model.specs[0]
        return [_shaped(_side_by_side([tf.cast(column, dtype) for column in columns]), shape)]
    if len(model.specs) != len(columns):
        raise UsageError(f"the model has {len(model.specs)} inputs and {len(columns)} features are given: one for each")
    pairs = zip(columns, model.specs, strict=True)
    return [_shaped(tf.cast(column, dtype), shape) for column, (dtype, shape) in pairs]


def _side_by_side(columns: list[Any]) -> Any:
    import tensorflow as tf

    if len(columns) == 1:
        return columns[0]
    return tf.concat([column[:, tf.newaxis] if column.shape.rank == 1 else column for column in columns], axis=1)


def _shaped(value: Any, shape: tuple[int | None, ...]) -> Any:
    """Rows in the shape of the model's input, as far as that is known: 784 values as 28 by 28 by 1."""
    import tensorflow as tf

    return value if None in shape[1:] else tf.reshape(value, [tf.shape(value)[0], *shape[1:]])


def _in_order(made: Any) -> list[Any]:
    if isinstance(made, Mapping):
        return list(made.values())
    return list(made) if isinstance(made, (list, tuple)) else [made]
