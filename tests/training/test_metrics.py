"""History, evaluation and callbacks see metrics of the global data, the same bits on every rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.soak import every
from tests.training.conftest import assert_same_history, assert_same_weights, succeeded, told
from tests.training.harness import DATA

LINEAR = """
class Linear(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        return self.dense(inputs)

"""


@pytest.mark.soak
def test_metrics_of_every_kind_equal_those_of_one_process(same_as_plain) -> None:
    cell = DATA + (
        """
binary = (labels > 0).astype("float32")[:, None]
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy", metrics=[
    "accuracy", keras.metrics.AUC(), keras.metrics.Precision(), keras.metrics.Recall(), keras.metrics.F1Score(
        threshold=0.5), keras.metrics.R2Score(), keras.metrics.RootMeanSquaredError(), keras.metrics.TruePositives()])
fitted = model.fit(x, binary[:131], batch_size=2, epochs=1, validation_data=(val_x, binary[131:]), verbose=0)
history = {name: [float(np.squeeze(v)) for v in values] for name, values in fitted.history.items()}
weights = model.get_weights()
evaluated = [float(np.squeeze(v)) for v in model.evaluate(features, binary, batch_size=7, verbose=0)]
again = model.evaluate(features, binary, batch_size=7, verbose=0, return_dict=True)["loss"]
"""
    )
    plain, *ranks = same_as_plain(cell, 3, "evaluated", "again")
    for outcome in ranks:
        np.testing.assert_allclose(outcome.values["evaluated"], plain.values["evaluated"], atol=1e-5)
        assert outcome.values["again"] == ranks[0].values["evaluated"][0]


@pytest.mark.soak
def test_early_stopping_and_schedules_act_alike_on_every_rank(same_as_plain) -> None:
    cell = DATA + (
        """
model = mlp()
model.compile(keras.optimizers.Adam(0.2), from_logits)
stopping = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
plateau = keras.callbacks.ReduceLROnPlateau(patience=1)
history = model.fit(x, y, batch_size=29, epochs=30, validation_data=(val_x, val_y), verbose=0,
                    callbacks=[stopping, plateau]).history
weights = model.get_weights()
epochs = len(history["loss"])
"""
    )
    # So long a learning rate makes more of rounding than others do: 3e-5 seen.
    plain, *_ = same_as_plain(cell, 2, "epochs", tolerance=1e-4)
    assert plain.values["epochs"] < 30


def test_callbacks_of_every_kind_decide_alike_on_every_rank_and_write_once(groups, tmp_path: Path) -> None:
    cell = DATA + (
        f"""
import glob
import os

folder = {str(tmp_path)!r} + "/" + WHERE
os.makedirs(folder, exist_ok=True)
seen = []


class Own(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        seen.append(dict(logs))
        if logs["val_loss"] < 0.9:
            self.model.optimizer.learning_rate = 0.001


model = mlp()
model.compile(keras.optimizers.Adam(0.05), from_logits, metrics=["accuracy"])
history = model.fit(x, y, batch_size=29, epochs=5, validation_data=(val_x, val_y), verbose=0, callbacks=[
    keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9), Own(), keras.callbacks.TerminateOnNaN(),
    keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch)),
    keras.callbacks.ModelCheckpoint(folder + "/{{epoch}}.weights.h5", monitor="val_accuracy", save_best_only=True,
                                    save_weights_only=True),
    keras.callbacks.CSVLogger(folder + "/log.csv"), keras.callbacks.BackupAndRestore(folder + "/backup"),
    keras.callbacks.EarlyStopping("val_accuracy", patience=1, restore_best_weights=True)]).history
weights = model.get_weights()
written = sorted(os.path.basename(name) for name in glob.glob(folder + "/*.h5"))
lines = len(open(folder + "/log.csv").readlines()) if os.path.exists(folder + "/log.csv") else 0
"""
    )
    names = ("seen", "written", "lines")
    plain = groups.plain("WHERE = 'plain'\n" + cell, "history", "weights", *names).values
    ranks = succeeded(groups[2].run("WHERE = f'two-{rank}'\n" + cell, "history", "weights", *names))
    assert_same_weights(ranks, plain["weights"], 1e-5)
    for outcome in ranks:
        assert_same_history(outcome.values["history"], plain["history"])
        assert len(outcome.values["seen"]) == len(plain["seen"])
    assert ranks[0].values["seen"] == ranks[1].values["seen"]
    assert (ranks[0].values["written"], ranks[0].values["lines"]) == (plain["written"], plain["lines"])
    assert (ranks[1].values["written"], ranks[1].values["lines"]) == ([], 0)


@pytest.mark.soak
@pytest.mark.parametrize("size", [3, 2])
def test_logs_after_batches_are_those_of_all_rows_where_a_callback_reads_them(groups, size: int) -> None:
    cell = DATA + (
        """
seen = []


class Reads(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        seen.append(float(logs["loss"]))


printed = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(float(logs["accuracy"])))
model = mlp()
model.compile("adam", from_logits, metrics=["accuracy"])
history = model.fit(x, y, batch_size=29, epochs=2, verbose=0, callbacks=[Reads(), printed]).history
"""
    )
    expected = groups[0].run(cell, "seen", "history")[0].values
    for outcome in succeeded(groups[size].run(cell, "seen", "history")):
        assert outcome.values["seen"] == pytest.approx(expected["seen"], abs=1e-5)
        assert_same_history(outcome.values["history"], expected["history"])


@pytest.mark.soak
def test_logs_that_a_step_makes_up_are_averaged_over_rows(same_as_plain) -> None:
    cell = (
        DATA
        + LINEAR
        + (
            """
class Own(Linear):
    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(inputs, targets, self(inputs, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"mine": loss}


model = Own()
model.compile("adam", from_logits)
history = model.fit(x[:116], y[:116], batch_size=29, epochs=2, verbose=0).history
weights = model.get_weights()
"""
        )
    )
    same_as_plain(cell, 2)


@pytest.mark.soak
def test_a_step_that_gives_the_results_of_all_metrics_has_those_of_one_process(same_as_plain) -> None:
    """The result of what ``compile`` was given is a dict in the dict of logs."""
    cell = DATA + (
        """
class Mine(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def call(self, inputs):
        return self.inner(inputs)

    def results(self, inputs, labels, loss, logits):
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(labels, logits)
        return {metric.name: metric.result() for metric in self.metrics}

    def train_step(self, data):
        inputs, labels = data
        with tf.GradientTape() as tape:
            logits = self(inputs, training=True)
            loss = self.compute_loss(y=labels, y_pred=logits)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return self.results(inputs, labels, loss, logits)

    def test_step(self, data):
        inputs, labels = data
        logits = self(inputs)
        return self.results(inputs, labels, self.compute_loss(y=labels, y_pred=logits), logits)


model = Mine()
model.compile("adam", from_logits, metrics=["accuracy"])
history = model.fit(x, y, batch_size=29, epochs=2, validation_data=(val_x, val_y), verbose=2).history
history["tested"] = model.evaluate(val_x, val_y, batch_size=10, verbose=0)
weights = model.get_weights()
"""
    )
    same_as_plain(cell, 2)


def test_a_metric_of_the_users_own_is_summed_and_one_that_is_no_sum_is_reported(groups) -> None:
    cell = DATA + (
        """
class Rows(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="rows")
        self.seen = self.add_variable((), "zeros", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.assign_add(tf.cast(tf.shape(y_pred)[0], "float32"))

    def result(self):
        return self.seen.value


class Largest(Rows):
    def __init__(self):
        super().__init__()
        self.name = "largest"

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.assign(tf.maximum(self.seen.value, tf.reduce_max(y_pred)))


model = mlp()
model.compile("adam", from_logits, metrics=[Rows(), Largest()])
history = model.fit(x, y, batch_size=29, epochs=2, verbose=0).history
"""
    )
    notices: list[str] = []
    outcomes = succeeded(groups[2].run(cell, "history", on_message=lambda _, m: notices.append(getattr(m, "text", ""))))
    assert outcomes[1].values["history"]["rows"] == [131.0, 131.0]
    assert [text.split()[1] for text in notices if text.startswith("Metric")] == ["'largest'"]


@pytest.mark.soak
def test_progress_counts_this_ranks_rows_and_rank_0_reports_each_epoch(groups) -> None:
    cell = DATA + (
        """
model = mlp()
model.compile("adam", from_logits, metrics=["accuracy"])
history = model.fit(x, y, batch_size=29, epochs=3, validation_data=(val_x, val_y), verbose=0).history
"""
    )
    messages: list[tuple[int, object]] = []
    outcomes = succeeded(groups[2].run(cell, "history", on_message=lambda rank, m: messages.append((rank, m))))
    ends = [m for _, m in messages if type(m).__name__ == "EpochEnd"]
    assert [(m.rank, m.epoch, m.epochs) for m in ends] == [(0, 0, 3), (0, 1, 3), (0, 2, 3)]
    history = outcomes[0].values["history"]
    assert [m.metrics for m in ends] == [{name: values[i] for name, values in history.items()} for i in range(3)]
    last = {m.rank: m for _, m in messages if type(m).__name__ == "Progress"}
    assert sum(m.rows for m in last.values()) == 3 * 131
    assert all((m.epoch, m.epochs, m.step, m.steps, m.phase) == (2, 3, 5, 5, "rest") for m in last.values())


OWN_LOGS = DATA + (
    """
class Own(keras.Sequential):
    def __init__(self, *given):
        super().__init__(*given)
        self.total = keras.metrics.Mean(name="total_loss")

    @property
    def metrics(self):
        return [*super().metrics, self.total]

    def step(self, data, logs):
        self.total.update_state(self.compute_loss(data[0], data[1], self(data[0])) + 1.0)
        share = 1.0 - logs["accuracy"]
        return {"loss": self.total.result(), "root": tf.sqrt(logs["loss"]), "errors": share, "last": LAST}

    def train_step(self, data):
        return self.step(data, super().train_step(data))

    def test_step(self, data):
        return self.step(data, super().test_step(data))


class Seen(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        losses.append(logs["loss"])


losses = []
model = Own(mlp().layers)
model.compile("sgd", from_logits, metrics=["accuracy"], run_eagerly=EAGERLY)
history = model.fit(x, y, batch_size=29, epochs=2, verbose=0, validation_data=(val_x, val_y), callbacks=CALLBACKS)
history = history.history
if losses:
    history["losses"] = [float(loss) for loss in losses]
weights = model.get_weights()
"""
)


@pytest.mark.soak
@pytest.mark.parametrize("callbacks", ["[Seen()]", "[]"])
def test_what_a_step_makes_of_metrics_is_made_of_those_of_all_rows(same_as_plain, groups, callbacks: str) -> None:
    cell = OWN_LOGS.replace("LAST", "logs['loss'] * 2.0").replace("EAGERLY", "False").replace("CALLBACKS", callbacks)
    same_as_plain(cell, 2)
    _, notices = told(groups[2], cell)
    assert not [text for text in notices if "metric results" in text]


@pytest.mark.soak
def test_the_result_of_a_metric_under_another_name_is_that_of_all_rows_in_an_eager_step(same_as_plain) -> None:
    cell = OWN_LOGS.replace("LAST", "0.0").replace("EAGERLY", "True").replace("CALLBACKS", "[]")
    same_as_plain(cell + "history = {name: history[name] for name in ('loss', 'val_loss')}\n", 2)


@pytest.mark.soak
def test_what_a_step_makes_of_metrics_and_of_a_batch_is_told(groups) -> None:
    mixed = "logs['loss'] * tf.reduce_mean(data[0])"
    _, notices = told(groups[2], OWN_LOGS.replace("LAST", mixed).replace("EAGERLY", "False").replace("CALLBACKS", "[]"))
    assert [text for text in notices if "metric results" in text and "'last'" in text and "root" not in text]


WITHIN_AN_EPOCH = """
import glob, h5py, tempfile
from tensorflow.python.summary.summary_iterator import summary_iterator

place = tempfile.mkdtemp()
uneven = x * np.where(np.arange(131) % 26 < 13, 1, 9)[:, None]  # the first half of each batch is one worker's
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, kernel_initializer="ones")])
model.compile(keras.optimizers.SGD(0.001), "mse")
callbacks = [
    keras.callbacks.ModelCheckpoint(
        place + "/best.weights.h5", "loss", save_best_only=True, save_weights_only=True, save_freq=4
    ),
    keras.callbacks.TensorBoard(place + "/events", update_freq=2),
]
model.fit(uneven, y, batch_size=26, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
best, told = [], []
for name in glob.glob(place + "/*.h5"):
    h5py.File(name).visititems(lambda _, found: best.append(found[()].ravel()) if hasattr(found, "shape") else None)
for name in glob.glob(place + "/events/*/events*"):
    values = [value for event in summary_iterator(name) for value in event.summary.value]
    told += [float(tf.make_ndarray(value.tensor)) for value in values if value.tag == "batch_loss"]
"""


@pytest.mark.soak
def test_what_keras_itself_does_within_an_epoch_is_by_all_rows(groups) -> None:
    expected = groups.plain(DATA + WITHIN_AN_EPOCH, "best", "told").values
    assert len(expected["best"]) > 2
    assert len(expected["told"]) > 4
    values = succeeded(groups[2].run(DATA + WITHIN_AN_EPOCH, "best", "told"))[0].values
    np.testing.assert_allclose(values["told"], expected["told"], rtol=1e-5)
    for mine, plain in zip(values["best"], expected["best"], strict=True):
        np.testing.assert_allclose(mine, plain, atol=1e-6)


IN_DICTS = """
class Nested(Linear):
    def train_step(self, data):
        inputs, labels = data
        with tf.GradientTape() as tape:
            outputs = self(inputs)
            loss = self.compute_loss(inputs, labels, outputs)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights))
        for metric in self.metrics:
            metric.update_state(*([loss] if metric.name == "loss" else [labels, outputs]))
        return {metric.name: metric.result() for metric in self.metrics}

model = Nested()
model.compile("sgd", from_logits, metrics=["accuracy", keras.metrics.SparseCategoricalCrossentropy(name="other")])
heeded = []
heed = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: heeded.append(list(logs)))
history = model.fit(x, y, batch_size=32, epochs=2, validation_data=(val_x, val_y), verbose=0).history
model.fit(x, y, batch_size=32, verbose=0, callbacks=[heed])
order = [list(history), heeded]
weights = model.get_weights()
"""


@pytest.mark.soak
def test_a_history_has_its_keys_in_the_order_of_one_process(same_as_plain) -> None:
    plain, *ranks = same_as_plain(DATA + LINEAR + IN_DICTS, 2, "order")
    assert plain.values["order"][0] != sorted(plain.values["order"][0])
    assert all(outcome.values["order"] == plain.values["order"] for outcome in ranks)


@pytest.mark.parametrize("eager", every(2, [True, False]))
def test_what_a_step_returns_for_each_row_is_that_of_all_rows_in_their_order(groups, eager: bool) -> None:
    cell = f"""{DATA}
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, rows):
        return self.dense(rows)

    def train_step(self, data):
        rows, wanted = data
        with tf.GradientTape() as tape:
            each = tf.keras.losses.sparse_categorical_crossentropy(wanted, self(rows), from_logits=True)
            loss = tf.reduce_mean(each)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {{"loss": loss, "each": each, "three": tf.reduce_mean(self(rows), axis=0), "both": each - loss,
                "pairs": tf.matmul(self(rows), self(rows), transpose_b=True)}}

model = Own()
model.compile("sgd", run_eagerly={eager})
history = model.fit(x, y, batch_size=33, epochs=2, shuffle=False, verbose=0).history
history = {{name: [np.asarray(value).tolist() for value in values] for name, values in history.items()}}
"""
    plain = groups.plain(cell, "history").values["history"]
    outcomes, notices = told(groups[2], cell, "history")
    assert any("'both', 'pairs' is neither a mean nor a sum" in notice and "'each'" not in notice for notice in notices)
    for outcome in outcomes:
        for mine, expected in zip(outcome.values["history"]["each"], plain["each"], strict=True):
            np.testing.assert_allclose(mine, expected, atol=1e-5)  # of the 32 rows of an epoch's last batch
        assert len(plain["each"][0]) == 32


OF_ALL_TIMES = (
    DATA
    + """
class Seen(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="seen")
        self.rows = self.add_weight(name="rows", initializer="zeros")

    def update_state(self, y, predictions, sample_weight=None):
        self.rows.assign_add(keras.ops.cast(keras.ops.shape(y)[0], "float32"))

    def result(self):
        return 1.0 * self.rows

    def reset_state(self):
        pass


seen, model = Seen(), mlp()
model.compile("sgd", from_logits, metrics=[seen])
history = model.fit(x, y, batch_size=29, epochs=3, verbose=0, validation_data=(val_x, val_y)).history
model.evaluate(val_x, val_y, verbose=0)
weights, rows = model.get_weights(), float(seen.result())
"""
)


@pytest.mark.soak
def test_a_metric_that_is_never_reset_counts_each_row_once(same_as_plain) -> None:
    outcomes = same_as_plain(OF_ALL_TIMES, 2, "rows")
    assert {outcome.values["rows"] for outcome in outcomes} == {3 * 131 + 4 * 39}
