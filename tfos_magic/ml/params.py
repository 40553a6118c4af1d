"""What Keras stages are asked, as Spark ML's parameters and in its spelling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from tfos_magic.errors import UsageError, did_you_mean
from tfos_magic.transport.messages import STRATEGIES

Stage = TypeVar("Stage", bound=type)


def with_accessors(stage: Stage) -> Stage:
    """Give a class ``setEpochs`` and ``getEpochs`` for its parameter ``epochs``, and so for each that lacks them."""
    for name in [name for name in dir(stage) if isinstance(getattr(stage, name), Param)]:
        title = name[0].upper() + name[1:]
        for accessor, made in ((f"set{title}", _setter(name)), (f"get{title}", _getter(name))):
            if not hasattr(stage, accessor):
                made.__name__, made.__qualname__ = accessor, f"{stage.__name__}.{accessor}"
                setattr(stage, accessor, made)
    return stage


def _setter(name: str) -> Any:
    def set_param(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    set_param.__doc__ = f"Set ``{name}``, and give the stage itself."
    return set_param


def _getter(name: str) -> Any:
    def get_param(self: Any) -> Any:
        return self.getOrDefault(name)

    get_param.__doc__ = f"The value of ``{name}``, or its default."
    return get_param


def _to_count(value: Any) -> int:
    """A whole number from 1. Spark says of a TypeError which parameter it is about."""
    number = TypeConverters.toInt(value)
    if number < 1:
        raise TypeError(f"It is {number}: give a whole number from 1.")
    return number


def _to_verbosity(value: Any) -> int:
    number = TypeConverters.toInt(value)
    if number not in (0, 1, 2):
        raise TypeError(f"It is {number}: give 0 for nothing, or 1.")
    return number


def _to_strategy(value: Any) -> str:
    if value not in STRATEGIES:
        raise TypeError(f"There is no strategy {value!r}: give {', '.join(STRATEGIES)}.")
    return str(value)


def _to_callbacks(value: Any) -> list[Any]:
    callbacks = TypeConverters.toList(value)
    if others := [each for each in callbacks if not hasattr(each, "set_model")]:
        raise TypeError(f"{others[0]!r} is not a Keras callback.")
    return callbacks


def _to_dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is no dict.")
    return dict(value)


def _to_function(value: Any) -> Any:
    if not callable(value):
        raise TypeError(f"{value!r} is no function.")
    return value


def _to_model(value: Any) -> Any:
    if not hasattr(value, "fit"):
        raise TypeError(f"{type(value).__name__} is no Keras model.")
    return value


def _param(name: str, doc: str, converter: Any = None) -> Any:
    return Param(Params._dummy(), name, doc, converter)


class KerasColumns(HasFeaturesCol, HasLabelCol, HasPredictionCol):
    """The columns that a model reads and makes."""

    featuresCols = _param(
        "featuresCols",
        "columns that are inputs of the model by their names, for featuresCol",
        TypeConverters.toListString,
    )

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self._setDefault(featuresCol="features", labelCol="label", predictionCol="prediction")
        self.setParams(**given)

    def setParams(self, **given: Any) -> Any:
        """Set parameters by name, in Spark's spelling or with underscores. Raises :class:`UsageError` for others."""
        names = [self._known(name) for name in given]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"{twice[0]} is given in both spellings: leave one out.")
        return self._set(**dict(zip(names, given.values(), strict=True)))

    @property
    def features(self) -> list[str]:
        """The columns that the model reads."""
        return self.getOrDefault("featuresCols") if self.isDefined("featuresCols") else [self.getFeaturesCol()]

    def value(self, name: str, default: Any = None) -> Any:
        """A parameter where it is set or has a default, else ``default``."""
        return self.getOrDefault(name) if self.isDefined(name) else default

    def _known(self, name: str) -> str:
        camel = re.sub(r"_(\w)", lambda found: found[1].upper(), name)
        names = [param.name for param in self.params]
        if camel in names:
            return camel
        hint = did_you_mean(camel, names, f"It has {', '.join(names)}.")
        raise UsageError(f"{type(self).__name__} has no parameter {name!r}. {hint}")


class ClassColumns(HasProbabilityCol, HasRawPredictionCol):
    """The columns that a classifier makes besides; an empty name leaves one out."""


class KerasParams(KerasColumns, HasWeightCol, HasValidationIndicatorCol):
    """What an estimator is asked besides its columns."""

    model = _param(
        "model", "a Keras model; it must be compiled, except for KerasClassifier and KerasRegressor", _to_model
    )
    modelFn = _param("modelFn", "a function that makes the model of modelParams, a dict; for model", _to_function)
    modelParams = _param("modelParams", "a dict, what modelFn is called with", _to_dict)
    batchSize = _param("batchSize", "rows in a step, of all workers together", _to_count)
    epochs = _param("epochs", "how often all rows are trained on", _to_count)
    numWorkers = _param(
        "numWorkers",
        "how many workers train a model together; unset: all of a running cluster, two of a new one, one for a model "
        "of a search",
        _to_count,
    )
    strategy = _param("strategy", "sync, async or local", _to_strategy)
    strategyOptions = _param("strategyOptions", "a dict, the options of the strategy", _to_dict)
    shuffle = _param("shuffle", "whether rows come in another order in each epoch", TypeConverters.toBoolean)
    seed = _param("seed", "of the weights, the order of rows and what else is random", TypeConverters.toInt)
    checkpointDir = _param("checkpointDir", "a path or URL for checkpoints", TypeConverters.toString)
    resume = _param("resume", "whether to go on from the newest checkpoint there", TypeConverters.toBoolean)
    callbacks = _param("callbacks", "a list of Keras's callbacks", _to_callbacks)
    verbose = _param("verbose", "0 shows nothing, 1 shows progress", _to_verbosity)
    keepCluster = _param("keepCluster", "whether a cluster that fit starts stays", TypeConverters.toBoolean)

    def __init__(self, **given: Any) -> None:
        KerasColumns.__init__(self)
        self._setDefault(
            modelParams={}, epochs=1, strategy="sync", strategyOptions={}, shuffle=True, resume=False, verbose=1
        )
        self._setDefault(keepCluster=False, batchSize=32)
        self.setParams(**given)
