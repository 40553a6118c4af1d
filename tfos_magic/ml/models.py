"""Models that were trained: they transform DataFrames, and predict single rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from pyspark.ml import Model
from pyspark.ml.param.shared import HasWeightCol
from pyspark.ml.util import MLReadable, MLWritable

from tfos_magic.errors import DataError, UsageError
from tfos_magic.ml.dataframe_checks import FrameRows, check_columns
from tfos_magic.ml.fit_on_workers import EVALUATE, Facts
from tfos_magic.ml.params import ClassColumns, KerasColumns, with_accessors
from tfos_magic.ml.persistence import StageReader, StageWriter
from tfos_magic.ml.scores import Scores
from tfos_magic.ml.sharing import shared_cluster
from tfos_magic.ml.waiting import wait_for
from tfos_magic.tracebacks import essence
from tfos_magic.values.model_archives import from_archive


@dataclass(frozen=True)
class TrainingSummary:
    """How a training went: its metrics by name and epoch, its seconds, and the bytes of the rows that were fed."""

    history: dict[str, list[float]]
    seconds: float
    bytes: int


def new_columns(stage: KerasColumns, made: Sequence[str], dataset: Any) -> dict[str, str]:
    """The columns that a model adds, by what they hold. Raises :class:`UsageError` for one that is there already."""
    columns = {what: stage.value(f"{what}Col") for what in made if stage.value(f"{what}Col")}
    if taken := [(what, name) for what, name in columns.items() if name in dataset.columns]:
        raise UsageError(f"There is a column {taken[0][1]!r} already: set {taken[0][0]}Col to another name.")
    return columns


@with_accessors
class KerasModel(KerasColumns, HasWeightCol, Model, MLWritable, MLReadable[Any]):
    """What :class:`KerasEstimator` gives. ``transform`` is lazy, and adds the model's output as ``predictionCol``: a
    number, or an array where there are more in a row. ``summary`` says how the training went; None where the model was
    loaded by others.
    """

    made: ClassVar[tuple[str, ...]] = ("prediction",)

    def __init__(
        self, model: Any = None, facts: Facts | None = None, summary: TrainingSummary | None = None, **given: Any
    ) -> None:
        super().__init__(**given)
        self.held, self.facts, self.summary = model, facts or Facts(()), summary

    @property
    def keras(self) -> Any:
        """The Keras model. Raises :class:`ImportError` where there is no Keras."""
        return from_archive(self.held) if isinstance(self.held, bytes) else self.held

    def predict(self, row: Any) -> Any:
        """The prediction for one row: a vector or an array, or for ``featuresCols`` a dict of these by name."""
        try:
            rows = {name: _batch(value) for name, value in row.items()} if isinstance(row, dict) else _batch(row)
            made = self._scores({}).of(self.keras(rows, training=False))["prediction"].numpy()[0]
        except Exception as error:  # Keras's and TensorFlow's own, of what does not fit the model
            inputs = ", ".join(f"{each.name} of shape {tuple(each.shape[1:])}" for each in self.keras.inputs or ())
            why = next(iter(essence(str(error)).splitlines()), type(error).__name__)
            raise DataError(
                f"predict takes one row for the model's inputs ({inputs}), and this is none: {why}"
            ) from error
        return made.item() if made.ndim == 0 else made

    def evaluate(self, dataset: Any) -> dict[str, float]:
        """The loss and the metrics that the model was compiled with, by name, over the rows of ``dataset``, which
        ``weightCol`` weighs where it is set.

        The cluster computes them, in the order of the rows and in batches of 32, as Keras does. Raises what ``fit``
        raises.
        """
        rows = FrameRows(dataset)
        weight = {"weight": self.value("weightCol")} if self.value("weightCol") else {}
        rows.check(self.features, self.getLabelCol(), *weight.values())
        if self.facts.classifies:
            rows.refuse_labels_but(self.facts.known_classes, self.getLabelCol())
        names = {"model": self.keras, "facts": self.facts}
        with shared_cluster(dataset.sparkSession) as cluster:
            run = cluster.submit(
                EVALUATE,
                name=f"{type(self).__name__}.evaluate",
                names=names,
                frames={"data": dataset},
                features=self.features,
                label=self.getLabelCol(),
                outputs=["metrics"],
                shuffle=False,
                **weight,
            )
            metrics: dict[str, float] = wait_for(run.wait, run.stop)["metrics"]
        return metrics

    def objects_to_save(self) -> dict[str, Any]:
        """What there is to save beside the parameters, by name."""
        return {"held": self.held}

    def facts_to_save(self) -> Any:
        """What JSON can hold of it."""
        return {"facts": asdict(self.facts), "summary": asdict(self.summary) if self.summary else None}

    def take_saved(self, objects: dict[str, Any], facts: Any) -> None:
        """Be as what was saved."""
        self.held = objects["held"]
        known = facts["facts"]
        self.facts = Facts(**{**known, "shape": tuple(known["shape"]), "classes": tuple(known["classes"])})
        self.summary = TrainingSummary(**facts["summary"]) if facts["summary"] else None

    def write(self) -> StageWriter:
        return StageWriter(self)

    @classmethod
    def read(cls) -> StageReader:
        return StageReader(cls)

    def _transform(self, dataset: Any) -> Any:
        check_columns(dataset, self.features)
        columns = new_columns(self, self.made, dataset)
        return self._scores(columns).transform(dataset) if columns else dataset

    def _scores(self, columns: dict[str, str]) -> Scores:
        inputs = tuple(self.features) if self.isDefined("featuresCols") else ()
        return Scores(self.held, inputs, tuple(self.features), ("output",), (), False, "", self.facts, columns)


@with_accessors
class KerasClassificationModel(KerasModel, ClassColumns):
    """What :class:`KerasClassifier` gives: ``rawPredictionCol`` and ``probabilityCol`` are vectors, with a value for
    each class, and ``predictionCol`` is the class. An empty name leaves a column out."""

    made = ("rawPrediction", "probability", "prediction")

    @property
    def classes(self) -> list[int]:
        """The classes that the model tells apart, in the order of its probabilities."""
        return list(self.facts.known_classes)

    @property
    def numClasses(self) -> int:
        """How many these are."""
        return len(self.facts.known_classes)


@with_accessors
class KerasRegressionModel(KerasModel):
    """What :class:`KerasRegressor` gives: ``predictionCol`` is a number."""


def _batch(value: Any) -> Any:
    """One row as a batch: a number, an array or a vector of Spark ML's."""
    return np.asarray(value.toArray() if hasattr(value, "toArray") else value)[np.newaxis]
