"""``jit_compile=True`` on several ranks: what XLA compiles, what it leaves out, and where it stays off."""

from __future__ import annotations

import pytest

from tests.training.conftest import assert_same_weights, succeeded
from tests.training.harness import DATA

FIT = """
model.compile("adam", loss, jit_compile=True{more})
history = model.fit(x, y, batch_size=29, verbose=0{validation}).history
weights, jit = model.get_weights(), model.jit_compile
"""
EVALUATE = "evaluated = model.evaluate(val_x, val_y, batch_size=10, verbose=0)\n"
MLP = DATA + "model, loss = mlp(), from_logits\n"
# A mask and a loss that layers keep on the side must come out of what is compiled.
MASKED = (
    DATA
    + """
x, val_x = (np.abs(features * 10).astype("int32") % 20 for features in (x, val_x))
y, val_y = (np.repeat(labels[:, None, None], 12, 1).astype("float32") for labels in (y, val_y))
model, loss = keras.Sequential([
    keras.Input((12,), dtype="int32"), keras.layers.Embedding(20, 8, mask_zero=True),
    keras.layers.Dense(4, activity_regularizer="l2"), keras.layers.Dense(1),
]), "mse"
"""
)
NORMALIZED = (
    DATA
    + """
loss, model = from_logits, keras.Sequential([
    keras.Input((12,)), keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(3)])
model.layers[1].trainable = False
model.compile("sgd", loss, jit_compile=True)
model.fit(x[:29], y[:29], verbose=0)
model.layers[1].trainable = True
"""
)
RECURRENT = (
    DATA
    + """
loss, model = from_logits, keras.Sequential([
    keras.Input((12,)), keras.layers.Reshape((3, 4)), keras.layers.SimpleRNN(4), keras.layers.Dense(3)])
"""
)
REMEMBERING = (
    DATA
    + """
class Remembering(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        self.kept = self.dense(x)
        return self.kept

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, self.kept, sample_weight, training)


model, loss = Remembering(), from_logits
"""
)
SPARSE_TABLE = (
    DATA
    + """
class Lookup(keras.layers.Layer):
    def call(self, x):
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
        return x + table.lookup(tf.zeros([1], tf.int64))


loss, model = from_logits, keras.Sequential([keras.Input((12,)), Lookup(), keras.layers.Dense(3)])
"""
)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("model", "more"),
    [(MASKED, ""), (MLP, ", steps_per_execution=3")],
    ids=["mask and activity regularizer", "3 steps per execution"],
)
def test_compiled_ranks_give_the_weights_of_one_compiled_process(same_as_plain, groups, model: str, more: str) -> None:
    cell = model + FIT.format(more=more, validation=", validation_data=(val_x, val_y)") + EVALUATE
    plain, *ranks = same_as_plain(cell, 2, "evaluated", "jit")
    for outcome in ranks:
        assert outcome.values["jit"] is True, "the model did not get its setting back"
        assert outcome.values["evaluated"] == pytest.approx(plain.values["evaluated"], abs=2e-5)


FUNCTIONAL = (
    DATA
    + """
inputs = keras.Input((12,))
hidden = keras.layers.Dense(4, activity_regularizer="l2")(inputs)
loss, model = from_logits, keras.Model(inputs, keras.layers.Dense(3)(hidden))
"""
)


@pytest.mark.soak
def test_a_functional_model_is_compiled_as_in_one_process(same_as_plain) -> None:
    same_as_plain(FUNCTIONAL + FIT.format(more="", validation=""), 2)


OF_UNKNOWN_LENGTH = (
    DATA
    + """
model = mlp()
model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1), from_logits, jit_compile=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True).batch(29)
history = model.fit(data, epochs=3, verbose=0).history
steps, weights = int(model.optimizer.iterations), model.get_weights()
"""
)


@pytest.mark.soak
def test_no_part_of_a_step_runs_when_the_data_have_ended(same_as_plain) -> None:
    outcomes = same_as_plain(OF_UNKNOWN_LENGTH, 2, "steps")
    assert {outcome.values["steps"] for outcome in outcomes} == {15}


BY_HAND = (
    DATA
    + """
model = mlp()
model.compile("adam", from_logits, jit_compile=True)
losses = [float(model.train_on_batch(x[k : k + 29], y[k : k + 29])) for k in range(0, 131, 29)]
weights, history, jit = model.get_weights(), {"loss": losses}, model.jit_compile
"""
)


@pytest.mark.soak
def test_train_on_batch_trains_what_xla_was_to_compile(same_as_plain) -> None:
    assert {outcome.values["jit"] for outcome in same_as_plain(BY_HAND, 2, "jit")} == {True}


@pytest.mark.soak
def test_forward_pass_and_gradient_are_compiled_and_the_exchange_is_not(groups) -> None:
    cell = (
        DATA
        + """
graphs = []


class Watching(keras.layers.Layer):
    def call(self, x):
        graphs.append(tf.compat.v1.get_default_graph())
        return x


model, loss = keras.Sequential([keras.Input((12,)), Watching(), keras.layers.Dense(3)]), from_logits
model.compile("adam", loss, jit_compile=True)
model.fit(x, y, batch_size=29, verbose=0)
step = graphs[-1].outer_graph
operations = step.get_operations()
calls = [o for o in operations if o.type.endswith("PartitionedCall") and o.get_attr("_XlaMustCompile")]
compiled = sorted(call.get_attr("f").name for call in calls)
exchanges = [o.name for o in operations if "PyFunc" in o.type]
"""
    )
    for outcome in succeeded(groups[2].run(cell, "compiled", "exchanges")):
        forward, backward = outcome.values["compiled"]
        assert forward.startswith("__forward_")
        assert "__backward_" in backward
        assert outcome.values["exchanges"]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (NORMALIZED, "BatchNormalization"),
        (RECURRENT, "list of tensors"),
        (REMEMBERING, "compute_loss"),
        (SPARSE_TABLE, "XLA does not compile"),
    ],
    ids=["global statistics", "loop over time", "own loss method", "hash table"],
)
def test_what_cannot_be_compiled_apart_runs_without_xla_and_says_why(groups, model: str, reason: str) -> None:
    cell, notices = model + FIT.format(more="", validation=""), []
    plain = groups.plain(cell.replace("jit_compile=True", "jit_compile=False"), "weights")
    outcomes = succeeded(
        groups[2].run(cell, "weights", "jit", on_message=lambda _, m: notices.append(getattr(m, "text", "")))
    )
    assert_same_weights(outcomes, plain.values["weights"], 1e-5)
    assert any("jit_compile is off in fit()" in text and reason in text for text in notices)
    assert all(outcome.values["jit"] is True for outcome in outcomes)


@pytest.mark.soak
def test_a_trial_of_xla_draws_no_random_number(groups) -> None:
    cell = DATA + (
        """
model = mlp()
model.compile("adam", from_logits, jit_compile=True)
model.fit(x, y, batch_size=29, verbose=0)
drawn = tf.random.uniform([3]).numpy()
"""
    )
    notices: list[str] = []
    outcomes = succeeded(
        groups[2].run(cell, "drawn", on_message=lambda _, message: notices.append(getattr(message, "text", "")))
    )
    expected = groups.plain(cell, "drawn").values["drawn"]
    assert all((outcome.values["drawn"] == expected).all() for outcome in outcomes)
    assert not any("Random numbers" in notice for notice in notices)
