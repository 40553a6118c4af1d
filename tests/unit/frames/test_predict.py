"""Predictions equal those of the model itself."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import cloudpickle
import keras
import numpy as np
import pandas as pd
import pytest
from keras.src.saving import saving_lib

import tfos_magic.frames as tfs
from tfos_magic.errors import UsageError
from tfos_magic.frames.pickling import pack

REAL_NOW = time.time()
RNG = np.random.default_rng(5)
VALUES = RNG.normal(size=(50, 6)).astype(np.float32)
FRAME = pd.DataFrame({"id": range(50), "v": list(VALUES), "first": VALUES[:, 0], "rest": list(VALUES[:, 1:])})


@pytest.fixture(scope="module")
def model() -> keras.Model:
    layers = [keras.Input((2, 3)), keras.layers.Flatten(), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
    return keras.Sequential(layers)


@pytest.fixture(scope="module")
def expected(model: keras.Model) -> np.ndarray:
    return np.asarray(model(VALUES.reshape(-1, 2, 3), training=False))


@pytest.mark.parametrize("features", [["v"], ["first", "rest"]])
def test_features_side_by_side_take_the_models_shape(
    model: keras.Model, expected: np.ndarray, features: list[str]
) -> None:
    made = tfs.predict(model, FRAME, features=features, batch_size=16)
    assert made["id"].tolist() == list(range(50))
    np.testing.assert_allclose(np.stack(list(made["prediction"])), expected, rtol=1e-5, atol=1e-6)


def test_a_file_and_a_saved_model_predict_as_the_model_does(
    model: keras.Model, expected: np.ndarray, tmp_path: Path
) -> None:
    model.save(tmp_path / "m.keras")
    model.export(str(tmp_path / "saved"), verbose=False)
    for path in (tmp_path / "m.keras", tmp_path / "saved"):
        made = tfs.predict(str(path), FRAME, features=["v"], output="y")
        np.testing.assert_allclose(np.stack(list(made["y"])), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(UsageError, match="no signature 'other', it has serv"):
        tfs.predict(str(tmp_path / "saved"), FRAME, features=["v"], signature="other")


def test_argmax_gives_the_class_and_its_name(model: keras.Model, expected: np.ndarray) -> None:
    best = expected.argmax(axis=1)
    assert tfs.predict(model, FRAME, features=["v"], argmax=True)["prediction"].tolist() == best.tolist()
    named = tfs.predict(model, FRAME, features=["v"], classes=["a", "b", "c"])["prediction"]
    assert named.tolist() == [["a", "b", "c"][k] for k in best]
    with pytest.raises(UsageError, match="has 3 classes, and 2 names"):
        tfs.predict(model, FRAME, features=["v"], classes=["a", "b"])


def test_several_inputs_and_outputs_go_by_their_order() -> None:
    one, other = keras.Input((1,)), keras.Input((5,))
    both = keras.Model([one, other], [one * 2.0, keras.layers.Dense(2)(other)])
    made = tfs.predict(both, FRAME, features=["first", "rest"], output=["twice", "dense"])
    np.testing.assert_allclose([row[0] for row in made["twice"]], VALUES[:, 0] * 2)
    expected = both([VALUES[:, :1], VALUES[:, 1:]])[1]
    np.testing.assert_allclose(np.stack(list(made["dense"])), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(UsageError, match="2 outputs, output names 1"):
        tfs.predict(both, FRAME, features=["first", "rest"])
    with pytest.raises(UsageError, match="2 inputs and 1 features"):
        tfs.predict(both, FRAME, features=["rest"])


def test_a_model_is_the_same_program_at_any_time_until_its_weights_change(monkeypatch: pytest.MonkeyPatch) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.BatchNormalization()])
    model.compile("adam", "mse")
    model.fit(VALUES[:, :2], VALUES[:, :3], verbose=0)

    def predict(x: np.ndarray) -> dict[str, Any]:
        return {"y": model(x)}

    first = pack(predict, None)
    monkeypatch.setattr(saving_lib, "datetime", SimpleNamespace(datetime=_Tomorrow))
    monkeypatch.setattr(time, "time", lambda: _Tomorrow.now().timestamp())
    assert pack(predict, None) == first
    model.layers[0].kernel.assign_add(np.ones((2, 3), np.float32))
    assert pack(predict, None) != first
    function, _ = cloudpickle.loads(first)
    assert function(VALUES[:, :2])["y"].shape == (50, 3)


class _Tomorrow(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Self:
        return cls.fromtimestamp(REAL_NOW + 86_400, tz)


def test_what_is_no_built_model_is_refused() -> None:
    with pytest.raises(UsageError, match="built Keras model"):
        tfs.predict(keras.Sequential([keras.layers.Dense(1)]), FRAME, features=["v"])
