"""Inference: a Keras model or a SavedModel over the rows of a DataFrame."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfos_magic.errors import UsageError
from tfos_magic.frames.checks.ranges import refuse_unfit
from tfos_magic.frames.checks.widths import refuse_widths
from tfos_magic.frames.inference.column_bindings import by_name, by_own_name, taken_by
from tfos_magic.frames.inference.loading import Input, loaded
from tfos_magic.frames.inference.trained import trained_on
from tfos_magic.frames.mapping import map_blocks
from tfos_magic.frames.source import source_of

_SIGNATURE = "serving_default"


def predict(
    model: Any,
    frame: Any,
    *,
    features: Sequence[str] | Mapping[str, str] | None = None,
    output: str | Sequence[str] | Mapping[str, str] = "prediction",
    batch_size: int = 1024,
    argmax: bool = False,
    classes: Sequence[str] | None = None,
    signature: str = _SIGNATURE,
    schema: Any = None,
) -> Any:
    """Add a model's predictions to ``frame``, one row for each row, in any partitioning; lazy where Spark is.

    Parameters
    ----------
    model: a Keras model, or the path or URL of a ``.keras`` file or a SavedModel that every executor can read. A model
        travels with the job, and is loaded once in each Python worker; a file also when it has been replaced.
    features: the columns to feed, by default those that a run of this process trained the model on, or else all. A
        model of one input takes them side by side, cast to its dtype and reshaped to its shape. One of several takes a
        column for each: the column of its name, or the one that a dict of columns by input gives; a list of other names
        goes by the order of a Keras model's own list.
    output: name of the new column; for a model of several outputs a name for each: their own names where it gives a
        dict, else in their order. A dict has the new columns by the model's own names, some or all.
    batch_size: rows in one call of the model.
    argmax: give the index of the greatest value instead of all values; ``classes`` gives the name of that class.
    signature: which signature of a SavedModel.
    schema: as for :func:`map_blocks`.

    Raises :class:`UsageError` where the model's inputs or outputs are not those named, :class:`DataError` for values
    that its dtypes do not hold.
    """
    inputs = tuple(features) if isinstance(features, Mapping) else ()
    columns = trained_on(model, source_of(frame).specs) if features is None else tuple(features)
    columns = tuple(features.values()) if isinstance(features, Mapping) else columns
    names = (output,) if isinstance(output, str) else dict(output) if isinstance(output, Mapping) else tuple(output)
    prediction = Prediction(model, inputs, columns, names, tuple(classes or ()), argmax or bool(classes), signature)
    # Columns need not be identifiers: parameters stand for them by their place.
    feed = dict(zip(prediction.parameters, columns, strict=True))
    return map_blocks(prediction, frame, feed_dict=feed, block_rows=batch_size, schema=schema)


@dataclass
class Prediction:
    """A model as a tensor function; its parameters are the features by their place, meant for ``inputs`` if named.
    ``outputs`` are columns, or columns by what the model calls its outputs."""

    model: Any
    inputs: tuple[str, ...]
    features: tuple[str, ...]
    outputs: tuple[str, ...] | dict[str, str]
    classes: tuple[str, ...]
    argmax: bool
    signature: str

    @property
    def is_of_rows(self) -> bool:
        """A prediction is of its row alone, as blocks are of any rows."""
        return True

    @property
    def parameters(self) -> list[str]:
        return [f"feature_{i}" for i in range(len(self.features))]

    @property
    def files_read(self) -> tuple[str, ...]:
        """What the function reads besides its columns."""
        return (str(self.model),) if isinstance(self.model, (str, Path)) else ()

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in self.parameters])

    def __call__(self, **columns: Any) -> dict[str, Any]:
        values = [columns[name] for name in self.parameters]
        for taken, places in self._taken:
            self._check_widths(taken, places, values)
        fed = [self._fed(taken, [values[i] for i in places]) for taken, places in self._taken]
        made = self._ready.call(fed)
        outputs = self.outputs
        named = by_own_name(made, outputs) if isinstance(outputs, dict) else by_name(made, outputs)
        return {name: self._chosen(value) for name, value in named.items()}

    def check_blocks(self, blocks: Sequence[Any]) -> None:
        """Raise :class:`UsageError` for rows that do not have the shape of the model's input, :class:`DataError` for a
        value that its dtype does not hold."""
        for taken, places in self._taken:
            self._check_widths(taken, places, blocks)
            for i in places:
                refuse_unfit(blocks[i], taken.dtype_for(blocks[i].dtype.name), self.features[i])

    def _check_widths(self, taken: Input, places: Sequence[int], values: Sequence[Any]) -> None:
        columns = [values[i] for i in places]
        if not _goes_as_it_is(columns, taken):
            refuse_widths(taken.shape[1:], columns, [self.features[i] for i in places])

    def _fed(self, taken: Input, columns: list[Any]) -> Any:
        import tensorflow as tf

        cast = [tf.cast(column, taken.dtype_for(column.dtype.name)) for column in columns]
        return _shaped(_side_by_side(cast), taken)

    def prepare(self) -> None:
        """Load the model, which Keras cannot while a graph is traced."""
        self._ready = loaded(self.model, self.signature)
        self._taken = taken_by(self._ready, self.inputs, self.features)

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


def _side_by_side(columns: list[Any]) -> Any:
    import tensorflow as tf

    if len(columns) == 1:
        return columns[0]
    return tf.concat([column[:, tf.newaxis] if column.shape.rank == 1 else column for column in columns], axis=1)


def _shaped(value: Any, taken: Input) -> Any:
    """Rows in the shape of the model's input, as far as that is known: 784 values as 28 by 28 by 1."""
    import tensorflow as tf

    if None in taken.shape[1:] or _goes_as_it_is([value], taken):
        return value
    return tf.reshape(value, [tf.shape(value)[0], *taken.shape[1:]])


def _goes_as_it_is(columns: Sequence[Any], taken: Input) -> bool:
    """True where a subclass of Keras' Model gets the columns side by side without another shape."""
    rank = max(2 if len(columns) > 1 else 0, *(len(column.shape) for column in columns))
    return taken.native and rank == len(taken.shape)
