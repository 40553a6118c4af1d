"""Estimators: a Keras model, and how it is trained on the rows of a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLWritable

from tfos_magic.errors import UsageError
from tfos_magic.ml.dataframe_checks import FrameRows
from tfos_magic.ml.fingerprint import fingerprint
from tfos_magic.ml.fit_on_workers import CLASSIFY, REGRESS, FitJob
from tfos_magic.ml.fit_run import Training
from tfos_magic.ml.models import KerasClassificationModel, KerasModel, KerasRegressionModel, new_columns
from tfos_magic.ml.parallel_fits import ParallelFits
from tfos_magic.ml.params import ClassColumns, KerasParams, with_accessors
from tfos_magic.ml.persistence import StageReader, StageWriter
from tfos_magic.ml.waiting import wait_for
from tfos_magic.notebook.signals import interruptible
from tfos_magic.transport.messages import StrategyOptions
from tfos_magic.values.model_archives import from_archive


@with_accessors
class KerasEstimator(KerasParams, Estimator[Any], MLWritable, MLReadable[Any]):
    """Trains a Keras model that is compiled on a DataFrame, by a cluster on its session's executors.

    ``KerasEstimator(model=model, featuresCol="features", labelCol="label", epochs=3)``; parameters are those that
    ``explainParams()`` tells, in Spark's spelling or with underscores. ``modelFn(modelParams)`` may make the model
    instead, so that a grid can search what it is made of. Features are one column, of numbers, arrays or vectors, which
    is the model's input, or ``featuresCols``, its inputs by name. The weights are those of one process.

    It trains on the cluster that this process has, else on one that is started and stopped when no fit goes on.

    Raises :class:`DataError` for columns that cannot be fed, :class:`UsageError` for what does not go together, and
    what :meth:`TFCluster.run` raises. The idea of such an estimator is that of TensorFlowOnSpark and Horovod, its form
    that of xgboost.spark.
    """

    kind: ClassVar[str] = ""
    model_class: ClassVar[type[KerasModel]] = KerasModel

    def objects_to_save(self) -> dict[str, Any]:
        """What there is to save beside the parameters, by name."""
        return {}

    def facts_to_save(self) -> Any:
        """What JSON can hold of it."""
        return None

    def take_saved(self, objects: dict[str, Any], facts: Any) -> None:
        """Be as what was saved: parameters that JSON cannot hold come with the ``objects``."""
        self._set(
            **{name: from_archive(value) if isinstance(value, bytes) else value for name, value in objects.items()}
        )

    def write(self) -> StageWriter:
        return StageWriter(self)

    @classmethod
    def read(cls) -> StageReader:
        return StageReader(cls)

    def fitMultiple(self, dataset: Any, paramMaps: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """The models for ``paramMaps``, each with its index; safe to be shared by threads.

        DataFrames are fed once for all that read the same columns. Models train side by side, on ``numWorkers`` workers
        each, here one unless it is set, as many as the cluster has room for.
        """
        rows = FrameRows(dataset)
        names = [", ".join(f"{param.name} {value}" for param, value in each.items()) for each in paramMaps]
        trainings = [self.copy(each) for each in paramMaps]
        lengths = {each.value("epochs") for each in trainings}
        return ParallelFits([partial(each.training, rows, len(lengths) > 1) for each in trainings], names)

    def _fit(self, dataset: Any) -> Any:
        with interruptible():  # PySpark's own handler would cancel all jobs of the session
            training = self.training(FrameRows(dataset))
            with training.cluster() as cluster:
                run = training.submit(cluster)
                wait_for(run.wait, run.stop)
                return training.fitted(run, shown=bool(self.value("verbose")))

    def training(self, rows: FrameRows, lengths_differ: bool = False) -> Training:
        """What is to be done. Raises :class:`DataError` and :class:`UsageError` for what cannot be trained.

        Where ``lengths_differ``, as epochs in a grid, none is to go on from another.
        """
        if self.isDefined("model") == self.isDefined("modelFn"):
            raise UsageError(f"{type(self).__name__} takes one of model and modelFn.")
        if self.isDefined("model") and self.value("modelParams"):
            raise UsageError("modelParams are what modelFn makes a model of, and there is a model: give modelFn.")
        StrategyOptions.of(self.value("strategy"), self.value("strategyOptions") or {})  # refuses others
        new_columns(self, self.model_class.made, rows.frame)  # refuses those that are there
        rows.check(self.features, self.getLabelCol(), self.value("weightCol"))
        asked = FitJob(
            self.kind,
            self.value("model"),
            self.value("modelFn"),
            self.value("modelParams"),
            self.value("epochs"),
            self.value("callbacks", ()),
            rows.labels(self.getLabelCol()) if self.kind == CLASSIFY else (),
            self.getLabelCol(),
        )
        made = Training(self, self.model_class, asked, rows.split(self.value("validationIndicatorCol", "")))
        if not (folder := self.value("checkpointDir")):
            return made
        columns = [*self.features, self.getLabelCol(), self.value("weightCol"), self.value("validationIndicatorCol")]
        options = made.options if self.value("strategy") == "sync" else {**made.options, "workers": made.workers}
        word = fingerprint(asked, options, rows.digest([name for name in columns if name]))
        word += f"-{asked.epochs}" if lengths_differ else ""
        return replace(made, folder=f"{folder.rstrip('/')}/{word}")


@with_accessors
class KerasClassifier(KerasEstimator, ClassColumns):
    """As :class:`KerasEstimator`, of a model with one output for each class, or one for the second of two.

    The classes are the labels there are, which are whole numbers; those that are no places among the outputs are
    counted through, and have an output each. Outputs are probabilities or, where the loss says ``from_logits`` or
    there is none and the last activation is neither softmax nor sigmoid, logits. A model that is not compiled
    learns by Adam and cross-entropy.
    """

    kind = CLASSIFY
    model_class = KerasClassificationModel


@with_accessors
class KerasRegressor(KerasEstimator):
    """As :class:`KerasEstimator`, of a model with one output. One that is not compiled learns by Adam and the mean
    squared error."""

    kind = REGRESS
    model_class = KerasRegressionModel
