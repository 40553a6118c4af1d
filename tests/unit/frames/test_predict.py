"""Predictions equal those of the model itself."""

from __future__ import annotations

import datetime
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras.src.saving import saving_lib

import tfos_magic.frames as tfs
from tfos_magic.errors import DataError, UsageError
from tfos_magic.frames.pickling import pack, unpack

pytestmark = pytest.mark.slow

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


def difference() -> keras.Model:
    """``zz - aa``, whose inputs the alphabet has the other way round."""
    first, second = keras.Input((1,), name="zz"), keras.Input((1,), name="aa")
    return keras.Model([first, second], first - second)


ONE_ROW = pd.DataFrame({"aa": [1.0], "zz": [5.0], "p": [7.0], "q": [2.0]})


def value(made: pd.DataFrame) -> float:
    return float(made["prediction"][0][0])


@pytest.mark.parametrize("features", [["zz", "aa"], ["aa", "zz"], {"aa": "aa", "zz": "zz"}])
def test_inputs_are_fed_by_their_names_whatever_the_order(features: Any, tmp_path: Path) -> None:
    model = difference()
    model.export(str(tmp_path / "saved"), verbose=False)
    model.save(tmp_path / "m.keras")
    for given in (model, tmp_path / "m.keras", str(tmp_path / "saved")):
        assert value(tfs.predict(given, ONE_ROW, features=features)) == 4.0


def test_columns_of_other_names_go_by_the_models_own_order_or_by_a_dict(tmp_path: Path) -> None:
    model = difference()
    model.export(str(tmp_path / "saved"), verbose=False)
    assert value(tfs.predict(model, ONE_ROW, features=["p", "q"])) == 5.0
    for given in (model, str(tmp_path / "saved")):
        assert value(tfs.predict(given, ONE_ROW, features={"aa": "p", "zz": "q"})) == -5.0
        for wrong in (["p", "zz"], {"aa": "p", "zy": "q"}):
            with pytest.raises(
                UsageError, match=r"takes .*zz \(float32\[\?,1\]\).* by name.*a dict of columns by input"
            ):
                tfs.predict(given, ONE_ROW, features=wrong)
    with pytest.raises(UsageError, match=r"by name, and features has p, q: .*features=\{'(aa|zz)': 'column'"):
        tfs.predict(str(tmp_path / "saved"), ONE_ROW, features=["p", "q"])


class Subtracting(keras.Model):
    """A subclass that takes a dict, and gives one."""

    def call(self, inputs: Any) -> Any:
        return {"much": inputs["zz"] - inputs["aa"], "little": inputs["aa"] - inputs["zz"]}


def test_models_of_dicts_take_features_and_outputs_by_their_names() -> None:
    subclass = Subtracting()
    subclass({name: np.ones((2, 1), np.float32) for name in ("zz", "aa")})
    inputs = {"zz": keras.Input((1,), name="zz"), "aa": keras.Input((1,), name="aa")}
    functional = keras.Model(inputs, {"much": inputs["zz"] - inputs["aa"], "little": inputs["aa"] - inputs["zz"]})
    for model in (subclass, functional):
        made = tfs.predict(model, ONE_ROW, features=["aa", "zz"], output=["little", "much"])
        assert (made["much"][0][0], made["little"][0][0]) == (4.0, -4.0)
        with pytest.raises(UsageError, match="by name, and features has p, q"):
            tfs.predict(model, ONE_ROW, features=["p", "q"], output=["little", "much"])
        assert list(tfs.predict(model, ONE_ROW, features=["aa", "zz"], output="much").columns) == [*ONE_ROW, "much"]
        with pytest.raises(UsageError, match="outputs have the names much, little"):
            tfs.predict(model, ONE_ROW, features=["aa", "zz"], output=["a", "b"])


def test_a_dict_names_outputs_as_the_model_does(tmp_path: Path) -> None:
    x = keras.Input((1,))
    model = keras.Model(x, [keras.layers.Rescaling(2.0)(x), keras.layers.Rescaling(3.0)(x)])
    model.export(tmp_path / "saved", verbose=False)
    frame = pd.DataFrame({"x": [1.0, 2.0]})

    def made(output: dict[str, str]) -> Any:
        return tfs.predict(str(tmp_path / "saved"), frame, output=output)

    assert made({"output_1": "three", "output_0": "two"})["three"].tolist() == [3.0, 6.0]
    assert made({"output_1": "three", "output_0": "two"})["two"].tolist() == [2.0, 4.0]
    assert made({"output_1": "three"}).columns.tolist() == ["x", "three"]
    for unknown in ({"zed": "two", "alpha": "three"}, {"zed": "two"}):
        with pytest.raises(UsageError, match=r"no output zed.*: it has output_0, output_1"):
            made(unknown)


def test_many_outputs_of_a_saved_model_keep_their_order(tmp_path: Path) -> None:
    given = keras.Input((1,))
    keras.Model(given, [given * float(i) for i in range(12)]).export(str(tmp_path / "saved"), verbose=False)
    names = [f"y{i}" for i in range(12)]
    made = tfs.predict(str(tmp_path / "saved"), pd.DataFrame({"x": [1.0]}), features=["x"], output=names)
    assert [made[name][0][0] for name in names] == list(range(12))


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_model_that_was_replaced_is_loaded_anew(kind: str, tmp_path: Path) -> None:
    path, layer = tmp_path / ("m.keras" if kind == "file" else "saved"), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((1,)), layer])
    for bias in (1.0, 2.0):
        layer.bias.assign([bias])
        layer.kernel.assign([[0.0]])
        model.save(path) if kind == "file" else model.export(str(path), verbose=False)
        assert value(tfs.predict(str(path), ONE_ROW, features=["aa"])) == bias


def test_a_model_is_read_from_any_file_system_and_its_version_is_known_there(tmp_path: Path) -> None:
    import fsspec

    memory, layer = fsspec.filesystem("memory"), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((1,)), layer])
    for bias in (1.0, 2.0):
        layer.bias.assign([bias])
        layer.kernel.assign([[0.0]])
        model.save(tmp_path / "m.keras")
        memory.put(str(tmp_path / "m.keras"), "/models/m.keras")
        assert value(tfs.predict("memory://models/m.keras", ONE_ROW, features=["aa"])) == bias
    with pytest.raises(UsageError, match="cannot be read: Protocol not known"):
        tfs.predict("nowhere://m.keras", ONE_ROW, features=["aa"])


UNFIT = {
    "too large an integer": (
        "int32",
        [2**33 + 5, 1],
        np.int64,
        r"has 8589934597, .* int32, of whole numbers from -2147",
    ),
    "negative": ("uint8", [1, -1], np.int64, r"has -1, .* uint8, of whole numbers from 0 to 255"),
    "too large a float": ("float32", [1e300, np.nan], np.float64, r"has 1e\+300, .* float32, of numbers from -3.4"),
    "no whole number": ("int32", [1.0, 1.5], np.float64, "has 1.5, .* int32"),
    "NaN among integers": ("int32", [1.0, np.nan], np.float64, "has nan, .* int32"),
    "just too large": ("int32", [1.0, 2.0**31], np.float32, "has 2147483648.0, .* int32"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_values_that_the_models_dtype_does_not_hold_are_refused_by_column_and_value(case: str) -> None:
    dtype, values, given, message = UNFIT[case]
    taken = keras.Input((1,), dtype=dtype)
    model = keras.Model(taken, keras.ops.cast(taken, "float64"))
    with pytest.raises(DataError, match=f"column 'x' {message}"):
        tfs.predict(model, pd.DataFrame({"x": np.array(values, given)}), features=["x"])


def test_values_that_are_rounded_and_nan_and_infinities_are_cast() -> None:
    taken = keras.Input((1,), dtype="float32")
    values = np.array([0.1, np.nan, np.inf, -np.inf, 3e38])
    made = tfs.predict(keras.Model(taken, taken * 1.0), pd.DataFrame({"x": values}), features=["x"])
    np.testing.assert_array_equal([row[0] for row in made["prediction"]], values.astype(np.float32))
    whole = keras.Input((1,), dtype="int8")
    made = tfs.predict(keras.Model(whole, whole * 1), pd.DataFrame({"x": [-128.0, 127.0]}), features=["x"])
    assert [row[0] for row in made["prediction"]] == [-128, 127]


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
    function, _ = unpack(first)
    assert function(VALUES[:, :2])["y"].shape == (50, 3)


def test_a_file_that_keras_does_not_load_without_help_is_told_with_the_remedy(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Lambda(lambda values: values * 2)])
    model.save(tmp_path / "m.keras")
    with pytest.raises(UsageError, match=r"cannot be loaded on the workers: load it in the notebook.*`Lambda`"):
        tfs.predict(str(tmp_path / "m.keras"), ONE_ROW, features=["aa"])
    given = keras.models.load_model(tmp_path / "m.keras", safe_mode=False)
    assert value(tfs.predict(given, ONE_ROW, features=["aa"])) == 2.0


def test_a_model_goes_without_the_state_of_its_optimizer() -> None:
    model = keras.Sequential([keras.Input((500,)), keras.layers.Dense(500)])
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(np.ones((2, 500)), np.ones((2, 500)), verbose=0)
    assert len(pack(lambda x: {"y": model(x)}, None)) < 1.2 * 4 * model.count_params()
    assert model.optimizer.iterations == 1


class _Tomorrow(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Self:
        return cls.fromtimestamp(REAL_NOW + 86_400, tz)


def centred(values: Any) -> Any:
    return values - keras.ops.mean(values, 0)


MIXING = {
    "a mean over rows": lambda: keras.layers.Lambda(centred),
    "a maximum of all": lambda: keras.layers.Lambda(lambda values: values / keras.ops.max(values)),
    "its place among the rows": lambda: keras.layers.Lambda(lambda values: keras.ops.cumsum(values, 0)),
}


@pytest.mark.parametrize("classes", [None, ["a", "b", "c", "d", "e", "f"]])
@pytest.mark.parametrize("layer", MIXING)
def test_a_model_that_mixes_rows_is_refused_in_its_first_block(layer: str, classes: Any) -> None:
    model = keras.Sequential([keras.Input((6,)), MIXING[layer]()])
    if classes and layer == "a maximum of all":  # which leaves the order of a row's values
        assert len(tfs.predict(model, FRAME, features=["v"], classes=classes)) == 50
        return
    with pytest.raises(UsageError, match=r"it mixes rows, .* tfs\.reduce_blocks, or call the model in tfs\.map_blocks"):
        tfs.predict(model, FRAME, features=["v"], classes=classes)


def test_a_model_of_rows_is_none_that_mixes_them_whatever_its_precision_and_values() -> None:
    for policy in ("float32", "float64", "mixed_bfloat16", "mixed_float16"):
        layers = [keras.layers.Dense(64, "tanh", dtype=policy) for _ in range(4)]
        model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Softmax()])
        wild = FRAME.assign(v=[v * scale for v, scale in zip(VALUES, [1e-9, 1e9, np.nan, 0, 1] * 10, strict=True)])
        for argmax in (False, True):
            assert len(tfs.predict(model, wild, features=["v"], argmax=argmax)) == 50
    attention = [keras.layers.Reshape((3, 2)), keras.layers.GaussianNoise(0.5), keras.layers.BatchNormalization()]
    assert len(tfs.predict(keras.Sequential([keras.Input((6,)), *attention]), FRAME, features=["v"])) == 50


@pytest.mark.soak
def test_a_notebooks_model_goes_by_value_with_the_globals_of_its_lambdas_and_all_attributes() -> None:
    """In a process of its own, whose main module stands for the notebook; the reader of the bytes has only these."""
    made = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, check=True, timeout=120).stdout
    function, _ = unpack(made)
    np.testing.assert_allclose(function(tf.constant([[3.0, 5.0]]))["y"], [[600.0, 1000.0]])


NOTEBOOK = """
import sys, keras, numpy as np, tensorflow as tf
from tfos_magic.frames.pickling import pack

FACTOR = 100.0

class Scale(keras.layers.Layer):
    def call(self, x):
        return x * self.by

scale = Scale()
scale.by = 2.0
scale.note = tf.data.Dataset.range(3)
model = keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda x: keras.ops.abs(x) * FACTOR), scale])
model.compile("adam", "mse", metrics=["mae"])
model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0)
sys.stdout.buffer.write(pack(lambda x: {"y": model(x)}, None))
"""


def test_features_that_do_not_fill_the_models_input_are_told_with_their_widths() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    # Scalars are counted before any row is read, arrays in the first block.
    with pytest.raises(UsageError, match=r"^the model takes 3 values per row, and first \(1\), id \(1\) give 2: name"):
        tfs.predict(model, FRAME[:0], features=["first", "id"])
    with pytest.raises(
        UsageError, match=r"^the model takes 3 values per row, and first \(1\), rest \(5\) give 6: name"
    ):
        tfs.predict(model, FRAME, features=["first", "rest"])
    with pytest.raises(UsageError, match=r"v \(6\) gives 6"):
        tfs.predict(model, FRAME, features=["v"])


def test_what_is_no_built_model_is_refused() -> None:
    with pytest.raises(UsageError, match="built Keras model"):
        tfs.predict(keras.Sequential([keras.layers.Dense(1)]), FRAME, features=["v"])
