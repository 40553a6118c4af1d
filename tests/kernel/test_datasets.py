"""A dataset of ``tf.data`` in one cell, the model in another: as Keras notebooks are written."""

from __future__ import annotations

import pytest

from tests.kernel.kernel_driver import Kernel

PREPARE = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(3)
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")  # which the layers of tests before may have settled
x = np.random.default_rng(0).normal(size=(101, 4))

def prepared(rows, target):
    if rows[0] > 0:  # which AutoGraph makes an operation
        rows = rows * 2
    return rows, target

def numbers():
    for i in range(20):
        yield i / 20

data = tf.data.Dataset.from_tensor_slices((x, x.sum(1))).shuffle(101).map(prepared).batch(16)
generated = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec((), tf.float64)).batch(8)
parts = {"train": data.take(5), "validation": data.skip(5)}
"""
TRAIN = """
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(data, epochs=2, verbose=0).history["loss"]
history += model.fit(parts["train"], validation_data=parts["validation"], verbose=0).history["val_loss"]
history += [float(tf.reduce_sum(batch)) for batch in generated]
weights = model.get_weights()
doubled = data.map(lambda rows, target: (rows * 2, target))
"""
KEEP = "expected, losses, rows = weights, history, np.concatenate([rows for rows, _ in doubled])"
COMPARE = """
assert max(abs(mine - plain).max() for mine, plain in zip(weights, expected)) < 1e-12
assert np.allclose(history, losses, rtol=1e-12, atol=0), (history, losses)
assert np.array_equal(np.sort(np.concatenate([rows for rows, _ in doubled])[:, 0]), np.sort(rows[:, 0]))
"""


@pytest.mark.soak
def test_a_dataset_of_an_earlier_cell_trains_as_in_one_process_and_comes_back(kernel: Kernel) -> None:
    for cell in (PREPARE, TRAIN, KEEP, PREPARE):
        result = kernel.run(cell)
        assert not result.error, result.traceback
    result = kernel.run("%%tfos_train -n 2 -o weights,history,doubled\n" + TRAIN)
    assert not result.error, result.traceback
    compared = kernel.run(COMPARE)
    assert not compared.error, compared.traceback


STEP = """
import tensorflow as tf
def step(state, n):
    return state, tf.numpy_function(abs, [n], tf.int64)
lines = tf.data.Dataset.range(3).scan(0, step)
"""


@pytest.mark.soak
def test_what_a_dataset_cannot_be_made_of_elsewhere_is_said(kernel: Kernel) -> None:
    assert not kernel.run(STEP).error
    refused = kernel.run("%%tfos_train -n 2\nprint([int(n) for n in lines])")
    assert refused.error == "CaptureError"
    assert "a tf.data.Dataset made by Scan reads data where it was made: make it in the cell." in refused.traceback


@pytest.mark.soak
def test_a_pandas_dataframe_and_a_dict_of_arrays_are_fed_as_a_spark_dataframe_is(kernel: Kernel) -> None:
    assert not kernel.run("""
import numpy as np, pandas
x = np.random.default_rng(0).normal(size=(53, 3)).astype("float32")
table = pandas.DataFrame({"x": list(x), "y": x.sum(1)})
arrays = {"x": x, "y": x.sum(1)}
""").error
    cell = """
import keras
keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = sum(len(y) for _, y in train)
model.fit(train, epochs=2, verbose=0)
NAME = model.get_weights()
"""
    for source in ("table", "arrays"):
        line = f"%%tfos_train -n 2 --feed train={source} --label y --no-shuffle -o {source}_weights"
        result = kernel.run(line + cell.replace("NAME", f"{source}_weights"))
        assert not result.error, result.traceback
        assert f"{source} became a Spark DataFrame, as it is now, and is fed as one" in result.text
        assert "train: 53 rows" in result.text
    same = kernel.run("print(all(np.allclose(a, b, atol=1e-6) for a, b in zip(table_weights, arrays_weights)))")
    assert same.text.strip() == "True"
    kernel.run("number = 3")
    refused = kernel.run("%%tfos_train --feed train=number\npass")
    assert "is int, and no DataFrame of Spark, pandas or polars" in refused.traceback
