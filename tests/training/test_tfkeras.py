"""``tf_keras``, which is Keras 2, under ``sync``: the weights and the history of one process, or a clear refusal."""

from __future__ import annotations

import numpy as np
import pytest

from tests.soak import every
from tests.training.conftest import assert_same_history, assert_same_weights, succeeded, told
from tests.training.harness import DATA
from tfos_magic.transport.messages import EpochEnd, Progress

pytest.importorskip("tf_keras", reason="pip install --no-deps tf-keras: its dependencies would replace tensorflow-cpu")

LEGACY = DATA.replace("import keras\n", "import tf_keras as keras\n") + (
    """
weights, history = [], {}


def train(model, *data, **options):
    options = {"batch_size": 65, "epochs": 2, "verbose": 0, **options}
    data = data or (x, y)
    if isinstance(data[0], (tf.data.Dataset, keras.utils.Sequence)) or hasattr(data[0], "__next__"):
        del options["batch_size"]
    for name, values in model.fit(*data, **options).history.items():
        history.setdefault(name, []).extend(values)
    weights.extend(model.get_weights())
    return model


def compiled(optimizer="sgd", metrics=("accuracy",), **options):
    model = mlp()
    model.compile(optimizer, from_logits, metrics=list(metrics), **options)
    return model
"""
)

CASES = {
    "unbuilt": (
        2,
        """
class Seeding(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        keras.utils.set_random_seed(5)


model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
model.compile("adam", from_logits, jit_compile=True)
train(model, tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True).batch(29), callbacks=[Seeding()])
weights.append(np.array(model.optimizer.iterations))
""",
    ),
    "scope": (2, "with tf.distribute.MirroredStrategy().scope():\n    model = compiled()\ntrain(model)"),
    "arrays": (
        3,
        "train(train(compiled(), validation_data=(val_x, val_y)), epochs=1)",
    ),  # one rank has no row of the last batch
    "optimizers": (
        2,
        """
old, new = keras.optimizers.legacy, keras.optimizers
rate = new.schedules.ExponentialDecay(0.1, 2, 0.5)
for optimizer in (new.SGD(rate, 0.9, clipvalue=0.01), new.Adam(0.05, global_clipnorm=0.1),
                  new.AdamW(0.05, clipnorm=0.05, use_ema=True), old.SGD(0.5, clipnorm=0.05),
                  old.Adam(rate, clipvalue=0.001)):
    train(compiled(optimizer, []), epochs=1)
""",
    ),
    "functional": (
        2,
        """
left, right = keras.Input((5,), name="left"), keras.Input((7,), name="right")
joined = keras.layers.Concatenate()([left, right])
regular = {"kernel_regularizer": "l2", "activity_regularizer": keras.regularizers.L2(0.01)}
outputs = {"a": keras.layers.Dense(3, name="a")(joined), "b": keras.layers.Dense(1, name="b", **regular)(joined)}
model = keras.Model([left, right], outputs)
heavy = {"a": np.linspace(0.5, 2.0, 131).astype("float32"), "b": np.linspace(2.0, 0.0, 131).astype("float32")}
model.compile("sgd", {"a": from_logits, "b": "mse"}, {"a": "accuracy", "b": "mae"}, {"a": 1.0, "b": 0.3},
              weighted_metrics={"a": ["accuracy"], "b": []})
inputs, targets = {"left": x[:, :5], "right": x[:, 5:]}, {"a": y, "b": y[:, None].astype("float32")}
train(model, inputs, targets, sample_weight=heavy)
train(compiled("adam"), class_weight={0: 0.5, 1: 1.0, 2: 3.0}, validation_split=0.2)
""",
    ),
    "subclassed": (
        2,
        """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)
        self.mine, self.total = keras.metrics.Mean("mine"), keras.metrics.Sum("total")

    def call(self, inputs, training=False):
        hidden = self.hidden(inputs)
        self.add_loss(0.1 * tf.reduce_mean(tf.square(hidden)))
        if tf.reduce_max(tf.abs(inputs)) > 1e6:  # AutoGraph makes a tf.cond of it
            hidden = 0.0 * hidden
        return self.out(hidden)


class OwnStep(Net):
    def train_step(self, data):
        inputs, targets, heavy = keras.src.engine.data_adapter.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(inputs, targets, self(inputs, training=True), heavy)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients([(0.5 * g, v) for g, v in zip(gradients, self.trainable_variables)])
        self.mine.update_state(loss)
        self.total.update_state(loss)
        return {"mine": self.mine.result(), "total": self.total.result(), "last": loss}


for model, loss in ((OwnStep(), from_logits),
                    (Net(), keras.losses.SparseCategoricalCrossentropy(True, reduction="sum"))):
    model.compile(keras.optimizers.SGD(0.01), loss, [keras.metrics.SparseCategoricalAccuracy()])
    train(model)
""",
    ),
    "datasets": (
        2,
        """
rows = tf.data.Dataset.from_tensor_slices((x, y))
known, unknown = rows.batch(65), rows.filter(lambda a, b: b >= 0).shuffle(50, seed=3).batch(29)
train(compiled(), known, validation_data=unknown)
train(compiled(steps_per_execution=2), unknown.repeat(), steps_per_epoch=5)
train(compiled(run_eagerly=True), epochs=1)


class Batches(keras.utils.Sequence):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        part = slice(index * 65, index * 65 + 65)
        return x[part], y[part], np.linspace(0.1, 1.0, 131)[part]


def generate():
    while True:
        yield x[:20], y[:20]
        yield x[20:21], y[20:21]


train(compiled(), Batches())
train(compiled(), generate(), steps_per_epoch=3)
""",
    ),
    "masks": (
        2,
        """
tokens = np.random.default_rng(2).integers(0, 20, (131, 7))
tokens[:, 4:] *= (y > 0)[:, None]
tokens[:40] = 0  # whole parts of a batch are masked
model = keras.Sequential([keras.Input((7,), dtype="int32"), keras.layers.Embedding(20, 6, mask_zero=True),
                          keras.layers.Dense(3)])
model.compile(keras.optimizers.Adam(0.02, global_clipnorm=0.3), from_logits, weighted_metrics=["accuracy"])
train(model, tokens, tokens % 3, shuffle=False, sample_weight=np.linspace(0.0, 1.0, 131).astype("float32"))
""",
    ),
    "callbacks": (
        2,
        """
import os
import tempfile

folder = tempfile.mkdtemp()
calls = keras.callbacks
given = [calls.ModelCheckpoint(folder + "/best.keras", save_best_only=True), calls.CSVLogger(folder + "/log.csv"),
         calls.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=10.0), calls.TensorBoard(folder + "/tb"),
         calls.EarlyStopping(monitor="loss", patience=3, min_delta=10.0, restore_best_weights=True)]
model = train(compiled("adam"), epochs=9, callbacks=given, validation_data=(val_x, val_y), validation_freq=2)
files = sorted(os.listdir(folder))
evaluated = model.evaluate(val_x, val_y, batch_size=20, verbose=0)
predicted = model.predict(val_x, verbose=0)
model.layers[0].trainable = False
model.compile("adam", from_logits)
train(model)
""",
    ),
}


@pytest.mark.parametrize("case", every(12, [name for name in CASES if name != "callbacks"]))
def test_models_give_the_weights_and_the_history_of_one_process(same_as_plain, case: str) -> None:
    size, body = CASES[case]
    same_as_plain(LEGACY + body, size)


def test_every_row_is_trained_on_by_one_rank_and_the_panel_hears_of_it(groups) -> None:
    told: list[tuple[int, object]] = []
    cell = LEGACY + "train(compiled(), validation_data=(val_x, val_y))"
    history = succeeded(groups[2].run(cell, "history", on_message=lambda *said: told.append(said)))[0].values["history"]
    last = {rank: message for rank, message in told if isinstance(message, Progress) and message.phase == "train"}
    assert [last[rank].rows for rank in (0, 1)] == [2 * (32 + 32), 2 * (33 + 33 + 1)]
    assert {(message.epoch, message.step, message.steps) for message in last.values()} == {(1, 3, 3)}
    ends = [message for _, message in told if isinstance(message, EpochEnd)]
    assert [end.metrics for end in ends] == [{name: history[name][epoch] for name in history} for epoch in (0, 1)]


@pytest.mark.soak
def test_rank_0_alone_writes_and_all_ranks_evaluate_and_predict_all_rows(groups, same_as_plain) -> None:
    expected, *outcomes = same_as_plain(LEGACY + CASES["callbacks"][1], 2, "files", "evaluated", "predicted")
    assert expected.values["files"] == ["best.keras", "log.csv", "tb"]
    assert [outcome.values["files"] for outcome in outcomes] == [expected.values["files"], []]
    for outcome in outcomes:
        np.testing.assert_allclose(outcome.values["evaluated"], expected.values["evaluated"], atol=2e-5)
        np.testing.assert_allclose(outcome.values["predicted"], expected.values["predicted"], atol=2e-5)


@pytest.mark.soak
def test_a_fed_dataset_with_empty_shares_and_a_model_of_keras_3_in_the_same_cell(groups) -> None:
    cell = LEGACY + (
        """
import os

from tensorflow.python.util.lazy_loader import KerasLazyLoader
from tfos_magic.training.inputs.marks import mark_sharded

BOUNDS = {0: (0, 0), 1: (0, 29)}  # of each global batch: nothing, and all


def share(begin, end):
    def batches():
        for start in range(0, 131, 29):
            yield x[start:start + 29][begin:end], y[start:start + 29][begin:end]

    spec = tf.TensorSpec((None, 12), tf.float32), tf.TensorSpec((None,), tf.int64)
    return tf.data.Dataset.from_generator(batches, output_signature=spec).apply(
        tf.data.experimental.assert_cardinality(5))


os.environ["TF_USE_LEGACY_KERAS"] = "1"
keras = KerasLazyLoader(globals(), "v2", name="keras")  # what tf.keras is from the start under this variable
fed = (mark_sharded(share(*BOUNDS[rank])) if SIZE else share(0, 29)).map(lambda a, b: (a * 1.0, b)).prefetch(2)
train(compiled("adam"), fed, validation_data=fed)
del os.environ["TF_USE_LEGACY_KERAS"]
import keras

from_logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train(compiled())
"""
    )
    expected = groups.plain("SIZE = 0\n" + cell, "weights", "history")
    outcomes = succeeded(groups[2].run("SIZE = 2\n" + cell, "weights", "history"))
    assert_same_weights(outcomes, expected.values["weights"], 1e-5)
    for outcome in outcomes:
        assert_same_history(outcome.values["history"], expected.values["history"])


@pytest.mark.soak
def test_dropout_draws_other_numbers_on_each_rank_and_the_same_again_in_another_run(groups) -> None:
    cell = LEGACY + (
        """
masks = []
for seed in (None, 5):
    model = keras.Sequential([keras.Input((50,)), keras.layers.Dropout(0.5, seed=seed), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    train(model, np.ones((4, 50), "float32"), np.zeros(4, "float32"))
    masks.append((model.layers[0](np.ones((1, 50), "float32"), training=True).numpy() > 0)[0].tolist())
"""
    )
    first = succeeded(groups[2].run(cell, "masks", "weights"))
    again = succeeded(groups[2].run(cell, "masks", "weights"))
    for one, other in zip(*(outcome.values["masks"] for outcome in first), strict=True):
        assert one != other
    for before, after in zip(first, again, strict=True):
        assert before.values["masks"][1] == after.values["masks"][1]
        assert all(map(np.array_equal, before.values["weights"], after.values["weights"]))
    assert all(map(np.array_equal, *(outcome.values["weights"] for outcome in first)))


ENDLESS = (
    LEGACY
    + """
model, raised = compiled(), ""
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(29).repeat()
try:
    CALL
except Exception as error:
    raised = type(error).__name__
iterations = int(model.optimizer.iterations.numpy())
"""
)


@pytest.mark.parametrize("size", every(2, [2, 1]))
@pytest.mark.parametrize(
    "call",
    ["model.fit(data, steps_per_epoch=10**6, verbose=0)", "model.evaluate(data, steps=10**7, verbose=0)"],
    ids=["fit", "evaluate"],
)
def test_a_request_stops_all_ranks_at_the_same_step(groups, size: int, call: str) -> None:
    group = groups[size]
    steps: dict[int, int] = {}

    def ask(rank: int, message: object) -> None:
        steps[rank] = max(steps.get(rank, 0), getattr(message, "step", 0))
        if len(steps) == size and min(steps.values()) > 0:  # the panel has seen steps of all
            for asked in range(size) if "evaluate" in call else [size - 1]:  # steps of evaluation exchange nothing
                group.stop(asked)

    outcomes = succeeded(group.run(ENDLESS.replace("CALL", call), "raised", "iterations", on_message=ask))
    assert {outcome.values["raised"] for outcome in outcomes} == {"RunStopped"}
    assert len({outcome.values["iterations"] for outcome in outcomes}) == 1


REFUSED = {
    "predict-on-shares": (
        "from tfos_magic.training.inputs.marks import mark_sharded\n"
        "compiled().predict(mark_sharded(tf.data.Dataset.from_tensor_slices(x).batch(9)), verbose=0)",
        "predict() on a fed DataFrame",
    ),
    "batch-normalization": (
        "model = keras.Sequential([keras.Input((12,)), keras.layers.BatchNormalization(), keras.layers.Dense(3)])\n"
        "model.compile('sgd', from_logits)\ntrain(model)",
        "BatchNormalization",
    ),
    "batch-normalization-made-late": (
        "class Late(keras.Model):\n    def build(self, shape):\n        self.norm = keras.layers.BatchNormalization()\n"
        "    def call(self, inputs):\n        return self.norm(inputs)[:, :3]\n"
        "model = Late()\nmodel.compile('sgd', from_logits)\ntrain(model)",
        "BatchNormalization",
    ),
    "mixed-precision": (
        "model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(3, dtype='mixed_bfloat16')])\n"
        "model.compile('sgd', from_logits)\ntrain(model)",
        "mixed precision",
    ),
    "loss-scaling": (
        "train(compiled(keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD())))",
        "loss scaling",
    ),
    "train-on-batch": ("compiled().train_on_batch(x, y)", "train_on_batch()"),
    "own-loop": (
        "model = mlp()\nwith tf.GradientTape() as tape:\n    loss = from_logits(y, model(x))\n"
        "keras.optimizers.legacy.SGD().minimize(loss, model.trainable_variables, tape=tape)",
        "apply_gradients() outside of fit()",
    ),
    "no-reduction": (
        "model = mlp()\nmodel.compile('sgd', keras.losses.SparseCategoricalCrossentropy(True, reduction='none'))\n"
        "train(model)",
        "without a reduction",
    ),
    "stateful": (
        "model = keras.Sequential([keras.layers.LSTM(2, stateful=True, batch_input_shape=(2, 3, 4))])\n"
        "model.compile('sgd', 'mse')\ntrain(model, np.zeros((4, 3, 4)), np.zeros((4, 2)), batch_size=2)",
        "stateful",
    ),
    "tuned-steps": ("train(compiled(steps_per_execution='auto'))", "steps_per_execution"),
    "backup": ("train(compiled(), callbacks=[keras.callbacks.BackupAndRestore('/nowhere')])", "BackupAndRestore"),
}


def test_what_would_not_be_equal_is_refused_on_every_rank_with_what_to_do_instead(groups) -> None:
    cell = LEGACY + "texts = {}\n"
    for name, (body, _) in REFUSED.items():
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        cell += f"try:\n{lines}except Exception as error:\n    texts[{name!r}] = type(error).__name__ + str(error)\n"
    for outcome in succeeded(groups[2].run(cell, "texts")):
        for name, (_, cause) in REFUSED.items():
            text = outcome.values["texts"].get(name, "it was not refused")
            assert text.startswith("TrainingError"), f"{name}: {text}"
            assert cause in text, text
            assert "import keras" in text, text


def test_other_strategies_and_checkpoints_that_are_asked_for_are_refused(groups) -> None:
    cell = LEGACY + "train(compiled())"
    for options in ({"strategy": "local"}, {"checkpoints": {"asked": True}}):
        for outcome in groups[2].run(cell, **options):
            assert outcome.kind == "TrainingError", outcome.error
            assert "import keras" in outcome.error


@pytest.mark.soak
def test_one_worker_alone_refuses_nothing(groups) -> None:
    cell = LEGACY
    for name in ("batch-normalization", "mixed-precision", "train-on-batch", "own-loop", "stateful"):
        cell += REFUSED[name][0] + "\n"
    succeeded(groups[1].run(cell))


@pytest.mark.soak
def test_code_of_the_users_own_in_a_model_of_keras_2_is_named(groups) -> None:
    cell = (
        DATA
        + """
import tf_keras

class Penalty(tf_keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(1e-3 * tf.reduce_sum(tf.square(inputs)))
        return inputs

def trained(*layers):
    model = tf_keras.Sequential([tf_keras.Input((12,)), tf_keras.layers.Dense(8), *layers, tf_keras.layers.Dense(3)])
    model.compile("sgd", tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, batch_size=29, verbose=0)
"""
    )
    assert not any("code of your own" in text for text in told(groups[2], cell + "trained()")[1])
    notices = told(groups[2], cell + "trained(Penalty())")[1]
    assert any("code of your own in Penalty" in notice and "import keras" in notice for notice in notices), notices
