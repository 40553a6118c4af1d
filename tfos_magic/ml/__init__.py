"""Keras in Spark ML pipelines: estimators that fit on a TensorFlow cluster, and models that transform.

DataFrames and parameters come in; the cluster trains, :mod:`tfos_magic.frames` predicts, and Spark ML's own tools tune,
evaluate and save what goes out. Importing this does not load Spark: trainers import what they fit with from here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfos_magic.ml.estimators import KerasClassifier, KerasEstimator, KerasRegressor
    from tfos_magic.ml.models import KerasClassificationModel, KerasModel, KerasRegressionModel

_WHERE = {
    **dict.fromkeys(("KerasClassifier", "KerasEstimator", "KerasRegressor"), "estimators"),
    **dict.fromkeys(("KerasClassificationModel", "KerasModel", "KerasRegressionModel"), "models"),
}

__all__ = [
    "KerasClassificationModel",
    "KerasClassifier",
    "KerasEstimator",
    "KerasModel",
    "KerasRegressionModel",
    "KerasRegressor",
]


def __getattr__(name: str) -> Any:
    """Load an estimator or a model when it is asked for."""
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
