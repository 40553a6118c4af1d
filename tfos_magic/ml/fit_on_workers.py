"""What the workers do for an estimator: build the model, fit it, and say what its outputs are. No Spark in here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfos_magic.errors import UsageError
from tfos_magic.ml.logits import gives_logits

FIT = "import tfos_magic.ml.fit_on_workers as t_\nmodel, history, facts = t_.fit(item, train, {validation})"
EVALUATE = "import tfos_magic.ml.fit_on_workers as t_\nmetrics = t_.evaluate(model, facts, data)"
"""What the workers run, with the names that it needs and those that it leaves."""

CLASSIFY, REGRESS = "classify", "regress"
_OF_CLASSES = ("sparse", "categoricalgeneralized", "circle", "ctc")
"""How the names of those losses begin whose labels are not as many as the outputs."""


@dataclass(frozen=True)
class FitJob:
    """One training, as its workers are told: a ``kind``, a model or what makes it, and what ``fit`` takes.

    ``labels`` are the classes that the data have, in their order, in the column ``label``.
    """

    kind: str
    model: Any
    make: Callable[[Any], Any] | None
    params: Mapping[str, Any]
    epochs: int
    callbacks: Sequence[Any] = ()
    labels: tuple[int, ...] = ()
    label: str = "label"


@dataclass(frozen=True)
class Facts:
    """What is known of a model that was trained.

    ``shape`` is that of its output, without the rows; ``classifies`` says that the outputs are of classes, ``logits``
    that they are to become probabilities yet; ``classes`` has the class of each output where that is not its place.
    """

    shape: tuple[int | None, ...]
    classifies: bool = False
    logits: bool = False
    classes: tuple[int, ...] = ()

    @property
    def known_classes(self) -> Sequence[int]:
        """The classes that a classifier tells apart."""
        return self.classes or range(_classes_of(self.shape))


def fit(asked: FitJob, train: Any, validation: Any = None) -> tuple[Any, dict[str, list[float]], Facts]:
    """Train as asked, and give the model, the history of its metrics by name, and the facts.

    Raises :class:`UsageError` where model and labels do not fit.
    """
    model = asked.model if asked.make is None else asked.make(dict(asked.params))
    if not hasattr(model, "fit"):
        raise UsageError(f"modelFn gave {type(model).__name__}: let it return a Keras model.")
    _check_inputs(model, train)
    shape = _shape_of(model, train) if _is_plain(model) or not getattr(model, "compiled", False) else None
    classes = _check(asked, model, shape)
    logits = gives_logits(model)
    _compile(model, asked.kind, shape, logits)
    labels = train.element_spec[1].shape[1:]
    if asked.kind != CLASSIFY and shape is not None:
        _check_labels(asked, model.loss, labels, shape)
    train, validation = (_in_floatx(_indexed(data, classes)) for data in (train, validation))
    history = model.fit(
        train, validation_data=validation, epochs=asked.epochs, callbacks=list(asked.callbacks), verbose=0
    )
    values = {name: [float(value) for value in series] for name, series in history.history.items()}
    classifies = asked.kind == CLASSIFY
    if shape is None:  # it was built in its first step
        shape = _shape_of(model, train)
        if classes:
            _refuse_other_outputs(classes, shape)
        elif not classifies:
            _check_labels(asked, model.loss, labels, shape)
    return model, values, Facts(shape, classifies, classifies and logits, classes)


def evaluate(model: Any, facts: Facts, data: Any) -> dict[str, float]:
    """The loss and the metrics of the model, by name, over the data."""
    metrics: dict[str, float] = model.evaluate(_in_floatx(_indexed(data, facts.classes)), return_dict=True, verbose=0)
    return metrics


def _check_inputs(model: Any, data: Any) -> None:
    """Raise :class:`UsageError` where a model takes other inputs, or one of other rows, than there are."""
    inputs, spec = getattr(model, "inputs", None) or [], data.element_spec[0]
    given = len(spec) if isinstance(spec, dict) else 1
    if inputs and (given > 1) != (len(inputs) > 1):
        names = ", ".join(each.name for each in inputs)
        raise UsageError(
            f"The model has the inputs {names}: list them in featuresCols, as columns of the same names."
            if len(inputs) > 1
            else f"The model has one input, and featuresCols are {', '.join(spec)}: put a VectorAssembler before, and "
            "set featuresCol, or give the model an input of that name for each."
        )
    if isinstance(spec, dict) and (unlike := sorted(spec.keys() - {each.name for each in inputs})) and inputs:
        names = ", ".join(each.name for each in inputs)
        raise UsageError(f"featuresCols has {unlike[0]}, and the model's inputs are {names}: call the columns so.")
    if len(inputs) != 1 or isinstance(spec, dict) or spec.shape.rank is None:
        return
    if spec.dtype.name == "string" and inputs[0].dtype != "string":
        raise UsageError(
            "The model takes numbers, and the features are texts: put a StringIndexer before, or let the model begin "
            "with keras.Input((1,), dtype='string') and a TextVectorization."
        )
    taken, given = (math.prod(length or 0 for length in of.shape[1:]) for of in (inputs[0], spec))
    if taken and given and taken != given:
        raise UsageError(
            f"The model takes {taken} values for a row, and the features have {given}: let keras.Input have the shape "
            f"({given},), or choose other columns, by featuresCol or in the VectorAssembler."
        )


def _is_plain(model: Any) -> bool:
    """Whether its output's shape can be told before it is built, or it is built."""
    import keras

    return bool(model.built) or isinstance(model, keras.Sequential)


def _shape_of(model: Any, data: Any) -> tuple[int | None, ...]:
    """The shape of the model's output, without the rows.

    That of one row of zeros, for what layers of texts say of their shapes is not always so.
    """
    import keras
    import tensorflow as tf

    spec = data.element_spec[0]
    if all(each.shape[1:].is_fully_defined() for each in tf.nest.flatten(spec)):
        row = tf.nest.map_structure(lambda each: tf.zeros([1, *each.shape[1:]], each.dtype), spec)
        made = keras.tree.flatten(model(row, training=False))
    else:
        symbols = keras.tree.map_structure(lambda each: _symbol(keras, each), spec)
        made = getattr(model, "outputs", None) or keras.tree.flatten(model.compute_output_spec(symbols))
    if len(made) != 1:
        raise UsageError("The model has several outputs, and a stage of Spark ML makes one prediction: give it one.")
    return tuple(made[0].shape[1:])


def _check(asked: FitJob, model: Any, shape: tuple[int | None, ...] | None) -> tuple[int, ...]:
    """The class of each output; none where the classes are the places of the outputs."""
    if asked.kind == REGRESS and shape is not None and math.prod(length or 0 for length in shape) != 1:
        raise UsageError(
            f"A regressor's model has one output, and this one's are {_words(shape)}: end it with Dense(1)."
        )
    if asked.kind != CLASSIFY:
        return ()
    _refuse_loss(model, shape)
    if shape is None:
        return () if asked.labels == tuple(range(len(asked.labels))) else asked.labels
    return _classes(asked.labels, shape)


def _check_labels(asked: FitJob, loss: Any, given: Any, shape: tuple[int | None, ...]) -> None:
    """Raise :class:`UsageError` where a loss of Keras's own would compare labels with outputs of another shape, which
    TensorFlow spreads over each other."""
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", None) or type(loss).__name__
    if not _is_of_keras(loss) or name.replace("_", "").lower().startswith(_OF_CLASSES) or given.rank is None:
        return
    numbers = tuple(given)
    if not any(_alike(*pair) for pair in ((numbers, shape), ((*numbers, 1), shape), (numbers, (*shape, 1)))):
        raise UsageError(
            f"Column {asked.label!r} has {_numbers(numbers)} for a row, and the model gives {_numbers(shape)}: choose "
            "another label, or end the model with as many outputs."
        )


def _alike(one: Sequence[int | None], other: Sequence[int | None]) -> bool:
    return len(one) == len(other) and all(a == b or None in (a, b) for a, b in zip(one, other, strict=True))


def _numbers(shape: Sequence[int | None]) -> str:
    if len(shape) > 1 or None in shape:
        return f"numbers of shape ({', '.join(str(length or '?') for length in shape)})"
    count = shape[0] if shape else 1
    return "one number" if count == 1 else f"{count} numbers"


def _symbol(keras: Any, spec: Any) -> Any:
    return keras.KerasTensor((None, *spec.shape[1:]), spec.dtype.name)


def _classes(labels: tuple[int, ...], shape: tuple[int | None, ...]) -> tuple[int, ...]:
    """The class of each output; none where the classes are the places of the outputs."""
    if len(shape) != 1 or shape[-1] is None:
        raise UsageError(f"A classifier's model has one output for each class, and this one's are {_words(shape)}.")
    if labels[0] >= 0 and labels[-1] < _classes_of(shape):
        return ()
    _refuse_other_outputs(labels, shape)
    return labels


def _classes_of(shape: Sequence[int | None]) -> int:
    """How many classes outputs of that shape tell apart: one output is that of the second of two."""
    return max(shape[-1] or 0, 2)


def _refuse_other_outputs(labels: Sequence[int], shape: Sequence[int | None]) -> None:
    if (outputs := _classes_of(shape)) != len(labels):
        raise UsageError(
            f"The model has {outputs} classes, and the labels have {len(labels)}: {few(labels)}. Give it as many "
            "outputs, or put a StringIndexer before, which counts classes through."
        )


def few(labels: Sequence[int]) -> str:
    """The first of them, in words."""
    return ", ".join(map(str, labels[:8])) + (", …" if len(labels) > 8 else "")


def _words(shape: Sequence[int | None]) -> str:
    return f"of shape ({', '.join(['rows', *(str(length or '?') for length in shape)])})"


def _refuse_loss(model: Any, shape: Sequence[int | None] | None) -> None:
    """Raise :class:`UsageError` for a loss of Keras's own that takes no classes, or not of so many outputs."""
    loss = getattr(model, "loss", None)
    name = loss if isinstance(loss, str) else type(loss).__name__
    known = name.replace("_", "").lower()
    if not _is_of_keras(loss):
        return
    if known.startswith("categorical"):
        raise UsageError(
            f"The loss {name} is of labels one-hot, and labelCol has classes: take sparse_categorical_crossentropy."
        )
    if shape and (shape[-1] != 1) != known.startswith("sparse"):
        outputs = "one output" if shape[-1] == 1 else "an output for each class"
        fitting = "binary_crossentropy" if shape[-1] == 1 else "sparse_categorical_crossentropy"
        raise UsageError(f"The loss {name} does not fit a classifier whose model has {outputs}: take {fitting}.")


def _is_of_keras(loss: Any) -> bool:
    return isinstance(loss, str) or (getattr(loss, "__module__", None) or "").startswith("keras.")


def _compile(model: Any, kind: str, shape: tuple[int | None, ...] | None, logits: bool) -> None:
    """Compile a model that is not, for what it is to learn."""
    import keras

    if getattr(model, "compiled", False):
        return
    if not kind:
        raise UsageError("The model is not compiled: give it an optimizer and a loss by model.compile(…).")
    if kind == REGRESS:
        model.compile("adam", "mse", metrics=["mae"])
    elif shape and shape[-1] == 1:
        threshold = 0.0 if logits else 0.5
        loss = keras.losses.BinaryCrossentropy(from_logits=logits)
        model.compile("adam", loss, metrics=[keras.metrics.BinaryAccuracy("accuracy", threshold=threshold)])
    else:
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=logits), metrics=["accuracy"])


def _indexed(data: Any, classes: Sequence[int]) -> Any:
    """The data with the places of their labels among the ``classes``."""
    if data is None or not classes:
        return data
    import tensorflow as tf

    known = tf.constant(classes, tf.int64)
    return data.map(lambda x, y, *weight: (x, tf.searchsorted(known, tf.cast(y, tf.int64)), *weight))


def _in_floatx(data: Any) -> Any:
    """The data with doubles as Keras's floating point numbers, which it makes of the arrays that ``fit`` is given."""
    import keras
    import tensorflow as tf

    if data is None or not any(spec.dtype == tf.float64 for spec in tf.nest.flatten(data.element_spec)):
        return data
    kind = keras.config.floatx()
    return data.map(lambda *row: tf.nest.map_structure(lambda x: tf.cast(x, kind) if x.dtype == tf.float64 else x, row))
