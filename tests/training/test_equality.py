"""The promise of strategy ``sync``, weights and history of one plain process, where the table does not reach."""

from __future__ import annotations

import numpy as np
import pytest

from tests.soak import every
from tests.training.conftest import assert_same_weights, succeeded, told
from tests.training.harness import DATA

FIT = """
history = model.fit(x, y, batch_size=29, epochs=3, validation_data=(val_x, val_y), verbose=0).history
weights = model.get_weights()
"""
COMPILE = "model.compile({optimizer}, from_logits, metrics=['accuracy'])\n"
OPTIMIZERS = {
    "momentum": "keras.optimizers.SGD(0.1, momentum=0.9)",
    "adam": "keras.optimizers.Adam(0.01)",
}


def mlp_cell(optimizer: str) -> str:
    return DATA + "model = mlp()\n" + COMPILE.format(optimizer=OPTIMIZERS[optimizer]) + FIT


@pytest.mark.parametrize(("optimizer", "size"), every(4, [("adam", 3), ("momentum", 2), ("adam", 1), ("adam", 2)]))
def test_shuffled_arrays_give_the_weights_of_one_process(same_as_plain, optimizer: str, size: int) -> None:
    same_as_plain(mlp_cell(optimizer), size)


@pytest.mark.soak
def test_global_batches_smaller_than_the_world_leave_ranks_without_rows(same_as_plain) -> None:
    cell = DATA + "model = mlp()\n" + COMPILE.format(optimizer=OPTIMIZERS["adam"])
    cell += "history = model.fit(x, y, batch_size=2, epochs=1, verbose=0).history\nweights = model.get_weights()\n"
    same_as_plain(cell, 3)


GENERATED = """


def batches():
    for begin in range(0, 120, 20):
        yield x[begin : begin + 20], y[begin : begin + 20]


spec = tf.TensorSpec((None, 12)), tf.TensorSpec((None,), "int64")
data = tf.data.Dataset.from_generator(batches, output_signature=spec)
history = model.fit(data, epochs=2, verbose=0).history
weights = model.get_weights()
"""


@pytest.mark.soak
@pytest.mark.parametrize("data", [GENERATED, FIT])
def test_operations_that_are_to_be_deterministic_give_the_weights_of_one_process(same_as_plain, data: str) -> None:
    cell = DATA + "tf.config.experimental.enable_op_determinism()\nmodel = mlp()\n"
    cell += COMPILE.format(optimizer=OPTIMIZERS["adam"]) + data
    same_as_plain(cell, 2)


DEVICES = """
tf.config.threading.set_intra_op_parallelism_threads(3)
tf.config.threading.set_inter_op_parallelism_threads(5)
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.config.set_visible_devices([], "CPU")
"""


@pytest.mark.soak
def test_devices_and_threads_that_a_cell_sets_are_left_as_they_are_which_is_said(groups) -> None:
    expected = groups.plain(mlp_cell("adam"), "weights")
    outcomes, notices = told(groups[2], mlp_cell("adam").replace(DATA, DATA + DEVICES), "weights")
    assert_same_weights(outcomes, expected.values["weights"], 1e-5)
    assert ["devices and threads" in notice for notice in notices] == [True]


def test_convolutions_normalisation_and_pooling_give_the_weights_of_one_process(same_as_plain) -> None:
    cell = (
        DATA
        + """
images, classes = features[:, :9].repeat(4, 1).reshape(170, 6, 6, 1), labels
model = keras.Sequential([
    keras.Input((6, 6, 1)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(momentum=0.8),
    keras.layers.ReLU(), keras.layers.MaxPooling2D(2), keras.layers.Conv2D(4, 2), keras.layers.BatchNormalization(),
    keras.layers.Flatten(), keras.layers.Dense(3),
])
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), from_logits, metrics=["accuracy"])
history = model.fit(images, classes, batch_size=21, epochs=3, verbose=0).history
weights = model.get_weights()
"""
    )
    same_as_plain(cell, 2)
    same_as_plain(cell, 3)


@pytest.mark.soak
def test_normalisation_is_exact_when_a_rank_has_no_rows(same_as_plain) -> None:
    cell = (
        DATA
        + """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8), keras.layers.BatchNormalization(),
                          keras.layers.ReLU(), keras.layers.Dense(3)])
model.compile(keras.optimizers.SGD(0.01), from_logits)
history = model.fit(x[:62], y[:62], batch_size=12, epochs=2, verbose=0).history
weights = model.get_weights()
"""
    )
    same_as_plain(cell, 3)


@pytest.mark.soak
def test_several_steps_per_execution_give_the_weights_of_one_process(same_as_plain) -> None:
    cell = (
        DATA
        + """
model = mlp()
model.compile("adam", from_logits, metrics=["accuracy"], steps_per_execution=3)
history = model.fit(x, y, batch_size=29, epochs=2, validation_data=(val_x, val_y), verbose=0).history
weights = model.get_weights()
"""
    )
    same_as_plain(cell, 2)


@pytest.mark.soak
def test_a_step_of_the_users_own_with_two_optimizers_gives_the_weights_of_one_process(same_as_plain) -> None:
    cell = (
        DATA
        + """
class Pair(keras.Model):
    def __init__(self):
        super().__init__()
        self.left, self.right = keras.layers.Dense(3), keras.layers.Dense(3)

    def call(self, inputs):
        return self.left(inputs) + self.right(inputs)

    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape(persistent=True) as tape:
            outputs = self(inputs, training=True)
            loss = self.compute_loss(inputs, targets, outputs)
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.left.trainable_variables), self.left.trainable_variables))
        self.second.apply(tape.gradient(loss, self.right.trainable_variables), self.right.trainable_variables)
        return self.compute_metrics(inputs, targets, outputs)


model = Pair()
model.second = keras.optimizers.SGD(0.1)
model.compile("adam", from_logits, metrics=["accuracy"])
history = {"accuracy": model.fit(x, y, batch_size=29, epochs=2, verbose=0).history["accuracy"]}
weights = [v.numpy() for v in model.left.variables + model.right.variables]
"""
    )
    same_as_plain(cell, 2)


@pytest.mark.soak
def test_frozen_layers_and_a_second_fit_after_unfreezing_give_the_weights_of_one_process(same_as_plain) -> None:
    cell = (
        DATA
        + """
base = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, use_bias=False),
                         keras.layers.BatchNormalization(), keras.layers.ReLU()])
model = keras.Sequential([keras.Input((12,)), base, keras.layers.Dense(3)])
base.trainable = False
model.compile("adam", from_logits)
history = model.fit(x, y, batch_size=29, epochs=2, verbose=0).history
base.trainable = True
model.compile(keras.optimizers.Adam(1e-3), from_logits)
more = model.fit(x, y, batch_size=29, initial_epoch=2, epochs=4, verbose=0)
history["more"], history["epochs"] = more.history["loss"], more.epoch
weights = model.get_weights()
"""
    )
    same_as_plain(cell, 2)


def test_bfloat16_gives_equal_ranks_and_nearly_the_weights_of_one_process(same_as_plain) -> None:
    cell = (
        DATA
        + """
keras.config.set_dtype_policy("mixed_bfloat16")
try:
    model = mlp()
    model.compile("sgd", from_logits)
    history = {"epochs": model.fit(x, y, batch_size=29, epochs=1, verbose=0).epoch}
    weights = model.get_weights()
finally:
    keras.config.set_dtype_policy("float32")
"""
    )
    same_as_plain(cell, 2, tolerance=2e-4)  # 8 bits of mantissa


@pytest.mark.soak
def test_random_layers_repeat_bit_for_bit_with_the_same_seed(groups) -> None:
    cell = (
        DATA
        + """
def trained():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(16), keras.layers.Dropout(0.5),
                              keras.layers.GaussianNoise(0.1), keras.layers.Dense(3)])
    model.compile("adam", from_logits)
    model.fit(x, y, batch_size=29, epochs=2, verbose=0)
    return model.get_weights()


weights, again = trained(), trained()
"""
    )
    for outcome in succeeded(groups[3].run(cell, "weights", "again")):
        assert all(
            np.array_equal(a, b) for a, b in zip(outcome.values["weights"], outcome.values["again"], strict=True)
        )


@pytest.mark.soak
def test_mixed_precision_gives_equal_ranks_and_nearly_the_weights_of_one_process(same_as_plain) -> None:
    cell = (
        DATA
        + """
keras.config.set_dtype_policy("mixed_float16")
try:
    model = mlp()
    model.compile(keras.optimizers.SGD(0.05), from_logits)
    history = {"epochs": model.fit(x, y, batch_size=29, epochs=1, verbose=0).epoch}
    weights = model.get_weights()
    scaled = type(model.optimizer).__name__
finally:
    keras.config.set_dtype_policy("float32")
"""
    )
    outcomes = same_as_plain(cell, 2, "scaled", tolerance=2e-3)
    assert outcomes[1].values["scaled"] == "LossScaleOptimizer"


@pytest.mark.soak
def test_a_loss_scale_that_overflows_at_first_hides_no_sums_and_is_told_of(groups) -> None:
    cell = (
        DATA
        + """
keras.config.set_dtype_policy("mixed_float16")
try:
    model = mlp()
    model.compile(keras.optimizers.SGD(1e-6), lambda t, p: tf.reduce_sum((tf.cast(t, "float32") - p) ** 2))
    history = model.fit(30 * x, np.eye(3)[y], batch_size=131, epochs=6, shuffle=False, verbose=0).history
    weights, scale = model.get_weights(), float(model.optimizer.dynamic_scale)
finally:
    keras.config.set_dtype_policy("float32")
"""
    )
    expected = succeeded(groups[0].run(cell, "weights", "scale"))[0]
    assert expected.values["scale"] < 2**15
    outcomes, notices = told(groups[2], cell, "weights", "scale")
    assert not any("assumed to be means" in notice for notice in notices)
    assert any("a different step than those of all" in notice for notice in notices)
    assert [outcome.values["scale"] for outcome in outcomes] == [expected.values["scale"]] * 2
    assert_same_weights(outcomes, expected.values["weights"], 2e-3)


@pytest.mark.soak
def test_ranks_start_from_the_weights_of_rank_0(groups) -> None:
    cell = (
        DATA
        + """
keras.utils.set_random_seed(100 + rank)
model = mlp()
before = model.get_weights()[0]
model.compile("adam", from_logits)
model.fit(x, y, batch_size=29, shuffle=False, verbose=0)
weights = model.get_weights()
"""
    )
    outcomes = succeeded(groups[2].run(cell, "before", "weights"))
    assert not np.array_equal(outcomes[0].values["before"], outcomes[1].values["before"])
    assert_same_weights(outcomes, outcomes[0].values["weights"], 0.0)


def test_dropout_parts_in_steps_and_weights_and_later_draws_are_alike(groups) -> None:
    cell = (
        DATA
        + """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dropout(0.5), keras.layers.Dense(3)])
model.compile("adam", from_logits)
model.fit(x, y, batch_size=29, verbose=0)
weights = model.get_weights()
drawn = np.asarray(model.layers[0](np.ones((1, 12), "float32"), training=True))
"""
    )
    notices: list[str] = []
    outcomes = succeeded(
        groups[2].run(cell, "weights", "drawn", on_message=lambda _, m: notices.append(getattr(m, "text", "")))
    )
    assert np.array_equal(outcomes[0].values["drawn"], outcomes[1].values["drawn"])
    assert_same_weights(outcomes, outcomes[0].values["weights"], 0.0)
    assert any("(dropout)" in text for text in notices)


@pytest.mark.soak
def test_gradients_that_are_applied_in_every_second_step_meet_those_of_the_same_step(same_as_plain) -> None:
    """On one rank what is applied is late, on the other what comes after it, which does not wait by itself."""
    cell = DATA + (
        """
def late(value, size):
    slow = tf.linalg.svd(tf.random.stateless_normal((size, size), (1, 2)), compute_uv=False)
    return value + 0.0 * tf.reduce_sum(slow)


class Accumulating(keras.Sequential):
    def __init__(self):
        super().__init__([keras.Input((12,)), *mlp().layers])
        self.count = tf.Variable(0, trainable=False)
        self.sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in self.trainable_variables]

    def train_step(self, data):
        inputs, labels = data
        self.count.assign_add(1)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=labels, y_pred=self(inputs, training=True))
        for total, gradient in zip(self.sums, tape.gradient(loss, self.trainable_variables)):
            total.assign_add(gradient / 2)
        tf.cond(self.count % 2 == 0, self.apply, lambda: None)
        ones = late(tf.ones(3), (2, 400)[rank])
        self.seen.update_state(tf.reduce_mean(collectives.all_reduce([ones])[0] if collectives else ones))
        return {"loss": self.seen.result()}

    def apply(self):
        self.optimizer.apply_gradients(
            [(late(total, (400, 2)[rank]), v) for total, v in zip(self.sums, self.trainable_variables)]
        )
        for total in self.sums:
            total.assign(tf.zeros_like(total))


model = Accumulating()
model.seen = keras.metrics.Mean(name="seen")
model.compile("adam", from_logits)
model.fit(x[:116], y[:116], batch_size=29, epochs=6, verbose=0, shuffle=False)
weights, history = model.get_weights(), {}
"""
    )
    same_as_plain(cell, 2)


MASKED_STEPS = """
keras.config.set_floatx("float64")
x = np.random.default_rng(0).normal(size=(43, 6, 4))
x[::4, 4:] = 0
inputs = keras.Input((6, 4))
hidden = keras.layers.Masking()(inputs)
for options in ({"momentum": 0.7}, {"axis": 1, "center": False}, {"renorm": True}):
    hidden = keras.layers.BatchNormalization(**options)(hidden)
model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.LSTM(3)(hidden)))
model.compile("adam", "mse")
history = model.fit(x, x[:, 0, :1], batch_size=12, epochs=2, verbose=0, validation_split=0.2).history
weights = model.get_weights()
"""


@pytest.mark.soak
def test_normalisation_counts_what_is_not_masked_for_each_channel(same_as_plain) -> None:
    same_as_plain(DATA + MASKED_STEPS, 2, tolerance=1e-10)
