"""Keras in Spark ML pipelines: estimators that fit on a TensorFlow cluster, and models that transform.

DataFrames and parameters come in; the cluster trains, :mod:`tfos_magic.frames` predicts, and Spark ML's own tools tune,
evaluate and save what goes out.
"""

from tfos_magic.ml.estimators import KerasClassifier, KerasEstimator, KerasRegressor
from tfos_magic.ml.models import KerasClassificationModel, KerasModel, KerasRegressionModel

__all__ = [
    "KerasClassificationModel",
    "KerasClassifier",
    "KerasEstimator",
    "KerasModel",
    "KerasRegressionModel",
    "KerasRegressor",
]
