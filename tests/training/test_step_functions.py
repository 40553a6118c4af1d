"""Functions of the cell that are graphs of their own, ``@tf.function``, in the steps of models."""

from __future__ import annotations

import pytest

from tests.soak import every
from tests.training.harness import DATA

BEGIN = """
from keras import layers

keras.config.set_floatx("float64")
x = np.random.default_rng(0).normal(size=(41, 12))
y = x[:, :2].sum(1, keepdims=True)
"""

MODEL = """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.norm, self.out = layers.Dense(4, "tanh"), layers.BatchNormalization(), layers.Dense(1)

    {call}
    def call(self, inputs, training=False):
        return self.out(self.norm(self.hidden(inputs), training=training))

    {loss}
    def error(self, inputs, labels):
        {branch}
        return self.compute_loss(y=labels, y_pred=self(inputs, training=True))

    {update}
    def update(self, inputs, labels):
        with tf.GradientTape() as tape:
            loss = self.error(inputs, labels)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return loss

    {step}
    def train_step(self, data):
        return {{"error": self.update(*data)}}


model = Net()
{built}
model.compile("adam", "mse", run_eagerly={eagerly})
for _ in range(2):
    history = model.fit(x, y, batch_size=6, epochs=1, verbose=0, validation_data=(x, y)).history
predicted = model.predict(x, verbose=0)
weights = [*model.get_weights(), predicted, np.array(model.optimizer.iterations)]
"""
GRAPH = "@tf.function"
BRANCH = "if tf.reduce_mean(inputs) > 1e9: labels = labels * 2"  # by AutoGraph, or not at all
BUILT = "model(x[:2])"  # Keras does not train a model whose variables are first made in a graph of their own
CASES = {
    "the step": {"step": GRAPH, "branch": BRANCH},
    "what changes the weights": {"update": GRAPH, "branch": BRANCH},
    "the loss": {"loss": GRAPH, "branch": BRANCH},
    "the model": {"call": GRAPH, "built": BUILT},
    "all": {"step": GRAPH, "update": GRAPH, "loss": GRAPH, "call": GRAPH, "built": BUILT, "branch": BRANCH},
    "all in eager steps": {"update": GRAPH, "loss": GRAPH, "call": GRAPH, "built": BUILT, "eagerly": "True"},
    "by XLA": {"update": "@tf.function(jit_compile=True)"},
}
NONE = {"branch": "", "built": "", "call": "", "loss": "", "update": "", "step": "", "eagerly": "False"}

OF_THE_MODULE = """
@tf.function
def update(net, optimizer, inputs, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((net(inputs, training=True) - labels) ** 2)
    optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
    return loss


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([layers.Dense(3, "tanh"), layers.Dense(1)])

    def call(self, inputs):
        return self.inner(inputs)

    def train_step(self, data):
        return {"error": update(self.inner, self.optimizer, *data)}


model = Net()
model.compile("adam")
history = model.fit(x, y, batch_size=6, epochs=2, verbose=0).history
weights = [*model.get_weights(), np.array(model.optimizer.iterations)]
"""


@pytest.mark.soak
@pytest.mark.parametrize("case", every(8, CASES))
def test_a_function_within_a_step_does_what_it_does_in_one_process(same_as_plain, case: str) -> None:
    plain, *_ = same_as_plain(DATA + BEGIN + MODEL.format(**{**NONE, **CASES[case]}), 2, tolerance=1e-11)
    assert plain.values["weights"][-1] == 14


@pytest.mark.soak
def test_a_function_of_the_module_that_a_step_calls_trains(same_as_plain) -> None:
    plain, *_ = same_as_plain(DATA + BEGIN + OF_THE_MODULE, 2, tolerance=1e-11)
    assert plain.values["weights"][-1] == 14


BY_ROWS = """
class Rows(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[1], 3))

    def call(self, inputs):
        return tf.vectorized_map(lambda row: tf.tanh(tf.linalg.matvec(tf.transpose(self.kernel), row)), inputs)


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = {inner}

    def call(self, inputs):
        return self.inner(inputs)

    def train_step(self, data):
        inputs, labels = data
        with tf.GradientTape() as tape:
            errors = tf.square(self(inputs) - labels)[:, 0]
        by_row = tape.jacobian(errors, self.trainable_variables)
        clipped = [tf.clip_by_norm(g, 0.5, axes=list(range(1, len(g.shape)))) for g in by_row]
        self.optimizer.apply_gradients(zip([tf.{over}(g, 0) for g in clipped], self.trainable_variables))
        return {{"error": tf.reduce_mean(errors)}}


model = Net()
model.compile(keras.optimizers.SGD(0.01))
history = model.fit(x, y, batch_size=14, epochs=1, verbose=0).history
weights = model.get_weights()
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("inner", "over"),
    [("layers.Dense(1)", "reduce_sum"), ("layers.Dense(1)", "reduce_mean"),
              ("keras.Sequential([Rows(), layers.Dense(1)])", "reduce_sum")],
    ids=["sums", "means", "rows of a layer"],
)  # fmt: skip
def test_gradients_by_row_are_tried_as_sums_and_means(same_as_plain, inner: str, over: str) -> None:
    same_as_plain(DATA + BEGIN + BY_ROWS.format(inner=inner, over=over), 2, tolerance=1e-11)
