"""Models that are fitted, here and by the workers."""

from __future__ import annotations

from typing import Any

from tfos_magic.ml.fit_on_workers import FitJob


def linear(params: dict[str, Any]) -> Any:
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(params.get("units", 4)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(params.get("rate", 0.1)), "mse", weighted_metrics=["mae"])
    return model


def classes(params: dict[str, Any]) -> Any:
    import keras

    last = keras.layers.Dense(params.get("outputs", 3), activation=params.get("activation", "softmax"))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, "tanh"), last])
    if "loss" in params:
        model.compile("adam", params["loss"])
    return model


def subclassed(params: dict[str, Any]) -> Any:
    import keras

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.last = keras.layers.Dense(8, "tanh"), keras.layers.Dense(3, "softmax")

        def call(self, rows: Any) -> Any:
            return self.last(self.hidden(rows))

    return Own()


__all__ = ["FitJob", "classes", "linear", "subclassed"]
