"""What shows in a batch of many rows, or in a later batch, is what it is in one process, or refused."""

from __future__ import annotations

import pytest

from tests.soak import every
from tests.training.conftest import assert_same_weights, succeeded, told
from tests.training.harness import DATA, FED

BEGIN = (
    DATA
    + """
from keras import layers


class Layer(layers.Layer):
    def __init__(self, call, dtype="float32", shape=(), begin="zeros"):
        super().__init__(name="own")
        self.of, self.kept = call, self.add_weight(shape=shape, dtype=dtype, initializer=begin, trainable=False)

    def call(self, inputs, training=False):
        return self.of(self, inputs) if training else inputs


class Stepping(keras.Model):
    def __init__(self, reduce):
        super().__init__()
        self.dense, self.reduce = layers.Dense(3), reduce

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        inputs, labels = data
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(labels, self(inputs), from_logits=True)
            loss = self.reduce(losses)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def with_layer(*arguments, **options):
    return keras.Sequential([keras.Input((12,)), Layer(*arguments, **options), layers.Dense(3)])


def hardest(labels, outputs):
    losses = keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
    return losses * tf.cast(tf.argsort(tf.argsort(-losses)) < 8, losses.dtype)


late = np.clip(x, -1.9, 1.9)
late[60:110:3] += 6
loss, targets = from_logits, y
"""
)
FIT = """
model.compile(keras.optimizers.SGD(0.05), loss)
history = model.fit(late, targets, batch_size=32, epochs=2, shuffle=False, verbose=0).history
weights = model.get_weights()
"""

MEAN = (
    "later = lambda s, v: 0.9 * s.kept + tf.reduce_mean(tf.nn.relu(v - 2))\n"
    "model = with_layer(lambda s, v: [v / (1 + s.kept), s.kept.assign(later(s, v))][0])"
)
BY_HAND = """

@tf.function
def step(rows, labels):
    with tf.GradientTape() as tape:
        loss = from_logits(labels, model(rows, training=True))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)


for rows, labels in train:
    step(rows, labels)
weights = model.get_weights()
"""

EQUAL = {
    "rows without labels": "loss = lambda t, p: tf.square(tf.boolean_mask(t, t >= 0) - tf.boolean_mask(p, t >= 0))\n"
    "model = keras.Sequential([keras.Input((12,)), layers.Dense(1)])\n"
    "late, targets = x, np.abs(x[:, :1]) + 0.1\ntargets[40:60] = targets[100] = -1",
    "the hardest rows": "model, loss = mlp(), hardest",
    "a mean": MEAN,
    "a count": "count = lambda v: tf.reduce_sum(tf.cast(v > 3, v.dtype))\n"
    "model = with_layer(lambda s, v: [v / (1 + s.kept), s.kept.assign_add(count(v))][0])",
}

REFUSED = {
    "a rule for few rows": "rows = lambda v: tf.maximum(tf.cast(tf.size(v), v.dtype), 16)\n"
    "model = Stepping(lambda v: tf.reduce_sum(v) / rows(v))",
    "an added loss": "first = lambda s, v: tf.reduce_mean(tf.square(v[:8] * s.kept))\n"
    "model = with_layer(lambda s, v: s.add_loss(first(s, v)) or v, begin='ones')",
    "a maximum": "model = with_layer(lambda s, v: v / s.kept.assign(tf.maximum(s.kept, tf.reduce_max(v))))\n"
    "model.layers[0].kept.assign(2.0)",
    "flags": "seen = lambda s, v: s.kept.assign(s.kept | tf.reduce_any(v > 1.5, 0))\n"
    "model = with_layer(lambda s, v: seen(s, v) is None or v, dtype='bool', shape=(12,))",
    "the hardest rows": "model = Stepping(lambda v: tf.reduce_mean(tf.math.top_k(v, tf.minimum(8, tf.size(v)))[0]))",
    "rows after the eighth": "model = with_layer(lambda s, v: v - 0.1 * tf.reduce_sum(v[8:]))",
}


@pytest.mark.parametrize("case", every(4, EQUAL))
def test_what_comes_later_trains_to_the_weights_of_one_process(groups, case: str) -> None:
    cell = BEGIN + EQUAL[case] + FIT
    expected = groups.plain(cell, "weights", "history").values
    outcomes = succeeded(groups[2].run(cell, "weights", "history"))
    assert_same_weights(outcomes, expected["weights"], 1e-5)
    assert outcomes[0].values["history"]["loss"] == pytest.approx(expected["history"]["loss"], rel=1e-4)


@pytest.mark.parametrize("case", every(4, REFUSED))
def test_what_mixes_rows_later_is_refused_before_the_first_step(groups, case: str) -> None:
    for outcome in groups[2].run(BEGIN + REFUSED[case] + FIT):
        assert outcome.kind == "TrainingError", outcome.error
        assert "mixes the rows of a batch" in outcome.error
        assert "-n 1" in outcome.error


def test_what_only_later_batches_let_a_layer_collect_of_each_workers_rows_is_refused_at_the_end(groups) -> None:
    layer = (
        "model = with_layer(lambda s, v: s.kept.assign_add(tf.reduce_sum(tf.cast(v[:, 0] == 7, v.dtype))) is None or v)"
    )
    for outcome in groups[2].run(BEGIN + layer + "\nlate[70:120:3, 0] = 7" + FIT):
        assert outcome.kind == "TrainingError", outcome.error
        assert "different values in" in outcome.error
        assert "own" in outcome.error


def test_what_layers_collect_in_a_loop_of_the_cells_own_is_refused_where_workers_differ(groups) -> None:
    cell = (
        BEGIN
        + FED.replace("SIZE", "2")
        + """
model = with_layer(lambda s, v: v - s.kept.assign(0.9 * s.kept + 0.1 * tf.reduce_mean(v)))
optimizer = keras.optimizers.SGD(0.05)
"""
        + BY_HAND
    )
    for outcome in groups[2].run(cell):
        assert outcome.kind == "TrainingError", outcome.error
        assert "from one worker's rows" in outcome.error
        assert "fit() combines what layers collect" in outcome.error


@pytest.mark.soak
def test_an_embedding_in_a_function_of_the_cells_own_trains_where_a_worker_has_no_row_of_the_last_batch(groups) -> None:
    cell = (
        DATA
        + "x = (np.abs(x) * 10).astype('int32') % 40\n"
        + FED
        + """
model = keras.Sequential([
    keras.Input((12,), dtype="int32"), keras.layers.Embedding(40, 4), keras.layers.Flatten(), keras.layers.Dense(3)
])
optimizer = keras.optimizers.Adam(0.05)
"""
        + BY_HAND
    )
    expected = groups.plain(cell.replace("SIZE", "0"), "weights").values["weights"]
    assert_same_weights(succeeded(groups[2].run(cell.replace("SIZE", "2"), "weights")), expected, 1e-5)


KEEPS = """
class Keeps(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = keras.layers.Dense(8, "tanh"), keras.layers.Dense(12)

    def call(self, rows):
        self.code = self.inner(rows)
        return self.outer(self.code)


model = Keeps()
LOSS
model.compile(keras.optimizers.SGD(0.05), loss, jit_compile=JIT)
model.fit(x, x, batch_size=29, epochs=2, verbose=0)
weights = model.get_weights()
"""


@pytest.mark.parametrize(
    ("loss", "jit", "said"),
    [
        (
            "tf.reduce_mean(tf.square(t - p), -1) + 0.1 * tf.reduce_mean(tf.square(model.code), -1)",
            True,
            "keeps tensors",
        ),
        pytest.param(
            "tf.reduce_mean(tf.square(t - p)) + 0.1 * tf.reduce_mean(tf.square(model.code))",
            False,
            "it reads more than",
            marks=pytest.mark.soak,
        ),
    ],
    ids=["compiled", "one number"],
)
def test_a_loss_may_read_what_the_model_keeps_of_its_rows(groups, loss: str, jit: bool, said: str) -> None:
    cell = DATA + KEEPS.replace("LOSS", f"loss = lambda t, p: {loss}").replace("JIT", str(jit))
    expected = groups.plain(cell.replace("jit_compile=True", "jit_compile=False"), "weights").values["weights"]
    outcomes, notices = told(groups[2], cell, "weights")
    assert_same_weights(outcomes, expected, 1e-5)
    assert any(said in notice for notice in notices), notices
    assert not any("was not checked" in notice for notice in notices), notices


def test_weights_in_sixteen_bits_are_not_taken_for_a_mixture_of_rows(groups) -> None:
    cell = (
        DATA
        + "keras.config.set_dtype_policy('bfloat16')\nmodel = mlp()"
        + FIT.replace("late, targets", "x, y").replace(", loss)", ", from_logits)")
    )
    expected = groups.plain(cell, "weights").values["weights"]
    outcomes, notices = told(groups[2], cell, "weights")
    for mine, plain in zip(outcomes[0].values["weights"], expected, strict=True):
        assert abs(mine.astype("float32") - plain.astype("float32")).max() <= 2**-6
    assert any("bfloat16" in notice for notice in notices)


def test_counts_of_a_metric_in_other_types_are_named(groups) -> None:
    cell = (
        DATA
        + """
class Rows(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="rows")
        self.count = self.add_variable((), "zeros", name="count", dtype="uint32")

    def update_state(self, labels, outputs, sample_weight=None):
        self.count.assign(self.count.value + tf.cast(tf.shape(outputs)[0], "uint32"))

    def result(self):
        return tf.cast(self.count.value, "float32")


model = mlp()
model.compile("sgd", from_logits, metrics=[Rows()])
model.fit(x, y, batch_size=29, verbose=0)
"""
    )
    notices = told(groups[2], cell)[1]
    assert any("'rows'" in notice and "count (uint32)" in notice for notice in notices), notices


@pytest.mark.parametrize("rows", [26, 23], ids=["as many", "fewer"])
def test_a_loop_over_two_datasets_of_other_numbers_of_rows_is_told_of(groups, rows: int) -> None:
    cell = (
        DATA
        + FED.replace("SIZE", "2")
        + f"""
model, optimizer = mlp(), keras.optimizers.SGD(0.05)
others = fed(tf.data.Dataset.from_tensor_slices((x, y)).batch({rows}))
for (first, labels), (second, _) in zip(train, others):
    with tf.GradientTape() as tape:
        loss = from_logits(labels, model(first))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
"""
    )
    notices = told(groups[2], cell)[1]
    assert any("draws several batches for a step" in notice for notice in notices) == (rows == 23), notices
