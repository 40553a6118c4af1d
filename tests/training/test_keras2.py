"""What programs for Keras 2 ask of Keras 3 is taken as it was meant."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfos_magic.errors import UsageError
from tfos_magic.training.keras_seam.as_written.keras2 import keras2_understood

X = np.arange(24.0, dtype="float32").reshape(12, 2)


@pytest.fixture
def notices() -> Any:
    told: list[str] = []
    keras.backend.clear_session()
    with ExitStack() as stack:
        keras2_understood(stack, told.append)
        yield told
    assert "int" not in vars(np)


def sequential() -> Any:
    model = keras.Sequential([keras.layers.Dense(3, input_shape=(2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_a_sequential_model_is_exported_with_the_names_that_keras_2_gave(notices: list[str], tmp_path: Path) -> None:
    model = sequential()
    model.save(str(tmp_path / "export"), save_format="tf")
    signature = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    made = signature(dense_input=tf.constant(X))
    np.testing.assert_allclose(made["dense_1"], model(X), rtol=1e-6)


def test_a_named_input_of_a_sequential_model_keeps_its_name(notices: list[str], tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,), name="rows"), keras.layers.Dense(1)])
    model.save(str(tmp_path / "export"))
    signature = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    assert list(signature.structured_input_signature[1]) == ["rows"]


def test_a_functional_model_is_exported_by_the_names_of_its_inputs_and_last_layers(
    notices: list[str], tmp_path: Path
) -> None:
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    model = keras.Model([a, b], [keras.layers.Add(name="sum")([a, b]), keras.layers.Dense(1, name="line")(a)])
    model.save(str(tmp_path / "export"))
    signature = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    made = signature(a=tf.constant(X), b=tf.constant(X))
    np.testing.assert_allclose(made["sum"], 2 * X)
    assert made["line"].shape == (12, 1)


def test_nodes_that_export_to_one_folder_at_once_leave_a_whole_model(
    notices: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path, given = sequential(), tmp_path / "models" / "export", list[str]()
    write = tf.saved_model.save

    def save(module: Any, folder: str, **options: Any) -> None:
        given.append(folder)
        if len(given) == 1:
            model.save(str(path))  # the other node's, while this one is about to write
        write(module, folder, **options)

    monkeypatch.setattr(tf.saved_model, "save", save)
    model.save(str(path))
    assert len({*given, str(path)}) == 3
    assert {file.name for file in path.iterdir()} >= {"saved_model.pb", "variables"}
    assert [file.name for file in path.parent.iterdir()] == ["export"]
    made = tf.saved_model.load(str(path)).signatures["serving_default"](dense_input=tf.constant(X))
    np.testing.assert_allclose(made["dense_1"], model(X), rtol=1e-6)


def test_what_keras_takes_by_place_reaches_it(notices: list[str], tmp_path: Path) -> None:
    sequential().save(str(tmp_path / "model.keras"), True, True)  # to overwrite, zipped
    assert (tmp_path / "model.keras").is_file()


def test_nodes_that_save_weights_to_one_file_at_once_leave_it_whole(notices: list[str], tmp_path: Path) -> None:
    models = [sequential() for _ in range(4)]
    threads = [threading.Thread(target=model.save_weights, args=(str(tmp_path / "w"),)) for model in models * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [file.name for file in tmp_path.iterdir()] == ["w.weights.h5"]
    again = sequential()
    again.load_weights(str(tmp_path / "w"))
    found = again.get_weights()
    assert any(all(map(np.array_equal, found, model.get_weights())) for model in models)


def test_files_that_keras_3_knows_are_written_as_ever(notices: list[str], tmp_path: Path) -> None:
    sequential().save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").count_params() == 13


@pytest.mark.soak
@pytest.mark.parametrize(("weights_only", "ending"), [(True, ".weights.h5"), (False, ".keras")])
def test_checkpoints_get_the_ending_that_keras_3_wants_and_a_notice(
    notices: list[str], tmp_path: Path, weights_only: bool, ending: str
) -> None:
    checkpoint = keras.callbacks.ModelCheckpoint(str(tmp_path / "at-{epoch:02d}"), save_weights_only=weights_only)
    sequential().fit(X, X[:, :1], epochs=1, verbose=0, callbacks=[checkpoint])
    assert (tmp_path / f"at-01{ending}").exists()
    assert ending in notices[0]


def test_steps_that_are_no_whole_number_are_rounded_up(notices: list[str]) -> None:
    model, data = sequential(), tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(2).repeat()
    model.fit(data, epochs=2, steps_per_epoch=2.25, verbose=0)
    assert int(model.optimizer.iterations) == 6


def test_numpy_has_the_names_it_had(notices: list[str]) -> None:
    assert np.array([1.7]).astype(np.int).tolist() == [1]  # type: ignore[attr-defined]


def test_rates_are_taken_and_set_by_the_names_they_had(notices: list[str]) -> None:
    optimizer: Any = keras.optimizers.SGD(lr=0.5)
    optimizer.lr = 0.25
    assert float(optimizer.learning_rate) == 0.25
    tf.keras.backend.set_value(optimizer.lr, 0.125)
    assert float(optimizer.lr) == 0.125


def test_a_rate_decays_as_it_did(notices: list[str]) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.5, decay=0.25), lambda y, predicted: predicted)
    model.fit(np.ones((4, 1)), np.ones(4), batch_size=1, verbose=0)
    assert float(model.get_weights()[0][0, 0]) == pytest.approx(1 - sum(0.5 / (1 + 0.25 * step) for step in range(4)))


def test_a_rate_that_decays_is_read_as_it_began_and_not_set(notices: list[str]) -> None:
    optimizer: Any = keras.optimizers.SGD(0.5, decay=0.25)
    assert optimizer.lr == 0.5
    for attempt in (lambda: setattr(optimizer, "lr", 0.1), lambda: tf.keras.backend.set_value(optimizer.lr, 0.1)):
        with pytest.raises(UsageError, match="omit decay="):
            attempt()


def test_weights_are_found_by_the_names_that_they_were_written_by(notices: list[str], tmp_path: Path) -> None:
    model, other = sequential(), sequential()
    checkpoint = keras.callbacks.ModelCheckpoint(str(tmp_path / "weights-{epoch:04d}"), save_weights_only=True)
    assert tf.train.latest_checkpoint(str(tmp_path)) is None
    model.fit(X, X[:, :1], epochs=2, verbose=0, callbacks=[checkpoint])
    latest = tf.train.latest_checkpoint(str(tmp_path))
    assert latest == str(tmp_path / "weights-0002")
    other.load_weights(latest)
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])
    model.save_weights(str(tmp_path / "by_hand"))
    other.load_weights(str(tmp_path / "by_hand"))
    with pytest.raises(UsageError, match="load_weights_on_restart"):
        keras.callbacks.ModelCheckpoint(str(tmp_path), load_weights_on_restart=True)
    keras.callbacks.ModelCheckpoint(str(tmp_path), load_weights_on_restart=False, period=1)


@pytest.mark.parametrize(
    ("given", "metrics", "weights"),
    [
        ((["mae"],), ["mae"], None),
        ((["mae"], [0.5]), ["mae"], [0.5]),
        (([], [0.5]), [], [0.5]),
        ((None, [0.5]), None, [0.5]),
        (([0.5],), None, [0.5]),
        (([0.5], ["mae"]), ["mae"], [0.5]),
        ((None, ["mae"]), ["mae"], None),
        ((), None, None),
    ],
)
def test_metrics_are_the_third_that_compile_takes(
    notices: list[str], given: tuple[Any, ...], metrics: Any, weights: Any
) -> None:
    model = sequential()
    model.compile("sgd", "mse", *given)
    settings = model.get_compile_config()
    assert (settings["metrics"], settings["loss_weights"]) == (metrics, weights)
    assert len(model.evaluate(X, X[:, :1], verbose=0, return_dict=True)) == 1 + len(metrics or [])
