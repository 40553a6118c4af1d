"""What Python code of a model keeps in attributes: as in one process, for nothing of a trial or of building stays."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak import every
from tests.training.conftest import told
from tests.training.harness import DATA

BEGIN = (
    DATA
    + """
from keras import layers

y = x.sum(1, keepdims=True)
"""
)

COUNTED_IN_PYTHON = """
class Kind(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.builds, self.inner = 0, None

    def build(self, shape):
        self.inner, self.builds = layers.Dense(3), self.builds + 1
        self.inner.build(shape)

    def call(self, inputs):
        return self.inner(inputs)

class Counting(keras.Model):
    def __init__(self):
        super().__init__()
        self.kind, self.last, self.steps, self.seen, self.by_kind = Kind(), layers.Dense(1), 0, [], {"all": 0}

    def call(self, inputs):
        return self.last(self.kind(inputs))

    def train_step(self, data):
        inputs, target = data
        self.steps += 1
        self.seen.append(self.steps)
        self.by_kind["all"] += 1
        with tf.GradientTape() as tape:
            loss = self.compute_loss(inputs, target, self(inputs)) / self.steps
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}

model = Counting()
model.compile("adam", "mse", run_eagerly=True)
history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history
weights = model.get_weights()
counted = [model.steps, list(model.seen), dict(model.by_kind), model.kind.builds]
"""


def test_what_a_step_counts_in_python_is_counted_from_its_first_step_on(same_as_plain: Any) -> None:
    plain, *ranks = same_as_plain(BEGIN + COUNTED_IN_PYTHON, 2, "counted")
    assert all(outcome.values["counted"] == plain.values["counted"] for outcome in ranks)


INITIALIZED_BY_A_STATE = """
states = np.random.RandomState(3)

def drawn(shape, dtype=None):
    return states.normal(size=shape) * 0.3

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = layers.Dense(4, kernel_initializer=drawn), layers.Dense(1, kernel_initializer=drawn)

    def call(self, inputs):
        return self.last(self.first(inputs))

model = MODEL
model.compile("adam", "mse")
history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history
weights = model.get_weights()
"""


@pytest.mark.soak
@pytest.mark.parametrize("model", every(2, ["keras.Sequential([layers.Dense(1, kernel_initializer=drawn)])", "Net()"]))
def test_an_initializer_with_a_state_is_asked_once(same_as_plain: Any, model: str) -> None:
    same_as_plain(BEGIN + INITIALIZED_BY_A_STATE.replace("MODEL", model), 2)


BEGUN_IN_THE_FIRST_STEP = """
class Scaled(layers.Layer):
    def __init__(self):
        super().__init__()
        self.begun, self.calls = False, 0

    def build(self, shape):
        self.width = shape[-1]
        self.scale = self.add_weight(shape=(self.width,), initializer="ones", trainable=False)

    def call(self, inputs, training=False):
        self.calls += 1
        self._latest = getattr(self, "_latest", 0) + 1
        if training and not self.begun:
            self.begun = True
            self.scale.assign(tf.fill([self.width], 0.5))
        return inputs * self.scale

class Calling(keras.Model):
    def __init__(self):
        super().__init__()
        self.scaled, self.last = Scaled(), layers.Dense(1)

    def call(self, inputs, training=False):
        return self.last(self.scaled(inputs, training=training))

class Building(Calling):
    def build(self, shape):
        self.scaled.build(shape)
        self.last.build(shape)
        self.built = True

    def train_step(self, data):
        if not hasattr(self, "steps"):
            self.steps, self.table = 0, tf.Variable(tf.random.normal([2, 2]))
        self.steps += 1
        return super().train_step(data)

scaled = Scaled()
models = [keras.Sequential([scaled, layers.Dense(1)]), Calling(), Building()]
history = {}
for model in models:
    model.compile("adam", "mse", run_eagerly=EAGERLY)
    history[model.name] = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history["loss"]
weights = [array for model in models for array in model.get_weights()]
kept = [[each.begun, each.width, each.calls, each._latest] for each in (scaled, models[1].scaled, models[2].scaled)]
kept = [kept, models[2].steps] if EAGERLY else [each[:2] for each in kept]
"""


@pytest.mark.soak
@pytest.mark.parametrize("eagerly", [True, False])
def test_what_begins_in_the_first_step_begins_there_as_keras_builds_it(same_as_plain: Any, eagerly: bool) -> None:
    plain, *ranks = same_as_plain(BEGIN + BEGUN_IN_THE_FIRST_STEP.replace("EAGERLY", str(eagerly)), 2, "kept")
    assert all(outcome.values["kept"] == plain.values["kept"] for outcome in ranks)


MADE_IN_THE_FIRST_STEP = """
class Making(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.made, self.table, self.steps = layers.Dense(4), layers.Dense(1), False, None, 0

    def call(self, inputs):
        return self.last(self.first(inputs))

    def train_step(self, data):
        self.steps += 1
        if not self.made:
            self.made = True
            self.extra = layers.Dense(4, use_bias=False)
            self.extra.build((None, 12))
            self.table = tf.Variable(3.0)
        inputs, target = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs) + tf.reduce_sum(self.extra(inputs)[:, :1]) / self.table - target) ** 2)
            loss = tf.reduce_mean((self.last(self.first(inputs) + self.extra(inputs)) / self.table - target) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}

model = Making()
model.compile("adam", run_eagerly=True)
history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history
weights = model.get_weights()
kept = [model.made, model.steps, len(model.layers), float(model.table)]
"""


@pytest.mark.soak
def test_what_a_step_makes_behind_a_flag_is_made_once(same_as_plain: Any) -> None:
    plain, *ranks = same_as_plain(BEGIN + MADE_IN_THE_FIRST_STEP, 2, "kept")
    assert all(outcome.values["kept"] == plain.values["kept"] for outcome in ranks)


ENDING = """
class Ending(keras.Model):
    def __init__(self, steps):
        super().__init__()
        self.last, self.steps, self.lasts = layers.Dense(1), 0, steps

    def call(self, inputs):
        return self.last(inputs)

    def count(self):
        self.steps += 1
        if self.steps >= self.lasts:
            self.stop_training = True

    def train_step(self, data):
        self.count()
        return super().train_step(data)

weights, history, counted = [], {}, []
for steps in (1, 2, 4, 6):
    model = Ending(steps)
    model.compile("adam", "mse", run_eagerly=True)
    history[str(steps)] = model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0).history["loss"]
    weights += model.get_weights()
    counted += [model.steps, model.stop_training, int(model.optimizer.iterations)]
"""


@pytest.mark.soak
def test_a_training_that_a_step_ends_ends_with_that_step(same_as_plain: Any) -> None:
    plain, *ranks = same_as_plain(BEGIN + ENDING, 2, "counted")
    assert all(outcome.values["counted"] == plain.values["counted"] for outcome in ranks)


COUNTED_ELSEWHERE = """
class Warm(keras.optimizers.SGD):
    n = 0

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate * min(1.0, self.n / 20))

    def apply(self, gradients, variables=None):
        self.n += 1
        return super().apply(gradients, variables)

class Annealed(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def call(self, target, outputs):
        self.calls += 1
        return tf.reduce_mean((target - outputs) ** 2, -1) * min(1.0, self.calls / 10)

class Shrunk(keras.regularizers.Regularizer):
    def __init__(self):
        self.calls = 0

    def __call__(self, weights):
        self.calls += 1
        return 0.1 * tf.reduce_sum(weights**2) / self.calls

shrunk = Shrunk()
model = keras.Sequential([keras.Input((12,)), layers.Dense(1, kernel_regularizer=shrunk)])
model.compile(Warm(0.1), Annealed(), run_eagerly=True)
history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history
weights = model.get_weights()
counted = [model.optimizer.n, model.loss.calls, shrunk.calls]
"""


def test_what_optimizers_losses_and_regularizers_count_in_python_is_not_that_of_the_trial(same_as_plain: Any) -> None:
    plain, *ranks = same_as_plain(BEGIN + COUNTED_ELSEWHERE, 2, "counted")
    assert all(outcome.values["counted"] == plain.values["counted"] for outcome in ranks)


OF_ROWS = """
class Relative(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.steps, self.largest = layers.Dense(1), 0, None

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        inputs, target = data
        self.steps += 1
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs) - target) ** 2)
            scaled = loss / (self.largest or 1.0)
        KEEP
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}

model = Relative()
model.compile("adam", run_eagerly=True)
model.fit(x, y, batch_size=32, shuffle=False, verbose=0)
"""


@pytest.mark.parametrize(
    ("keep", "named"),
    every(
        5,
        [
            ("self.largest = float(loss)", "Relative.largest"),
            ("self.largest = loss", "Relative.largest"),
            ("self.largest = np.maximum(self.largest or 0.0, loss.numpy())", "Relative.largest"),
            ("self.seen = [*getattr(self, 'seen', []), float(loss)]", "Relative.seen"),
            ("self.best = {'loss': float(loss), 3: 'of any key'}", "Relative.best"),
            ("self.largest = 0.5 * self.steps", None),
        ],
    ),
)
def test_numbers_that_a_step_keeps_of_its_rows_are_told_of_by_name(groups: Any, keep: str, named: str | None) -> None:
    _, notices = told(groups[2], BEGIN + OF_ROWS.replace("KEEP", keep))
    about = [notice for notice in notices if "keeps values of its rows in Python" in notice]
    assert (named is None) == (not about)
    assert all(f"as {named}:" in notice for notice in about)


LISTED = """
class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.seen = []

    def update_state(self, target, outputs, sample_weight=None):
        self.seen.append(float(tf.reduce_max(outputs)))

    def result(self):
        return max(self.seen, default=0.0)

    def reset_state(self):
        self.seen = []

model = keras.Sequential([layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae", METRIC], run_eagerly=True)
model.fit(x, y, batch_size=32, shuffle=False, verbose=0)
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("metric", "named"), every(2, [("Largest()", True), ("keras.metrics.RootMeanSquaredError()", False)])
)
def test_a_metric_that_has_no_variables_is_told_of(groups: Any, metric: str, named: bool) -> None:
    _, notices = told(groups[2], BEGIN + LISTED.replace("METRIC", metric))
    assert any("Metric 'largest' (Largest) has no variables" in notice for notice in notices) is named


PREDICTED = """
class Counting(layers.Layer):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def call(self, inputs):
        self.calls += 1
        return inputs * min(1.0, self.calls / 40)

model = keras.Sequential([keras.Input((12,)), Counting(), layers.Dense(1)])
model.compile("adam", "mse", run_eagerly=True)
model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
predicted = model.predict(x, batch_size=16, verbose=0)
history = model.fit(x, y, batch_size=16, shuffle=False, verbose=0).history
weights, calls = [predicted, *model.get_weights()], model.layers[0].calls
"""


@pytest.mark.soak
def test_predictions_by_what_python_counts_are_those_of_all_batches_in_turn(same_as_plain: Any) -> None:
    plain, *ranks = same_as_plain(BEGIN + PREDICTED, 2, "calls")
    assert all(outcome.values["calls"] == plain.values["calls"] for outcome in ranks)


PREDICTED_IN_A_GRAPH = """
seen = []

def count(inputs):
    calls = tf.numpy_function(lambda: np.float32(len(seen.append(1) or seen)), [], tf.float32)
    return inputs * tf.ensure_shape(calls, [])

model = keras.Sequential([keras.Input((12,)), layers.Lambda(count)])
model.compile()
weights = [model.predict(x, batch_size=16, verbose=0), np.asarray(len(seen))]
history = {}
"""


def test_predictions_of_a_graph_that_calls_python_are_those_of_all_batches_in_turn(same_as_plain: Any) -> None:
    same_as_plain(BEGIN + PREDICTED_IN_A_GRAPH, 2)


HELD = """
import collections, dataclasses, random

class Clock:
    def __init__(self):
        self.ticks = 0

    def tick(self):
        self.ticks += 1
        return self.ticks

@dataclasses.dataclass
class State:
    step: int = 0

class Holding(keras.Model):
    steps = 0
    log = []

    def __init__(self):
        super().__init__()
        self.dense, self.clock, self.state = layers.Dense(1), Clock(), State()
        self.drawn, self.rng, self.recent = random.Random(3), np.random.default_rng(3), collections.deque(maxlen=4)

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        Holding.steps += 1
        Holding.log.append(Holding.steps)
        self.state.step += 1
        self.recent.append(self.state.step)
        if Holding.steps == 5:
            self.optimizer.learning_rate = 0.01
        return super().train_step(data)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        factor = (self.drawn.random() + self.rng.random() + sum(self.recent) / 9) / self.state.step
        return loss * (factor if self.clock.tick() < 6 else 0.5)

class Counted(keras.metrics.MeanAbsoluteError):
    updates = 0

    def update_state(self, *arguments, **more):
        self.updates += 1
        return super().update_state(*arguments, **more)

model, counted = Holding(), Counted(name="counted")
model.compile("adam", "mse", metrics=[counted, "mae"], run_eagerly=True)
history = model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0).history
history = {"loss": history["loss"]}
weights = model.get_weights()
kept = [Holding.steps, Holding.log, model.clock.ticks, model.state.step, list(model.recent), counted.updates]
kept += [model.drawn.random(), model.rng.random()]
"""


@pytest.mark.soak
def test_what_classes_and_objects_that_a_model_holds_count_is_not_that_of_the_trial(same_as_plain: Any) -> None:
    plain, *ranks = same_as_plain(BEGIN + HELD, 2, "kept")
    assert all(outcome.values["kept"] == plain.values["kept"] for outcome in ranks)


NESTED = """
import collections, functools, types

calls, losses = 0, []

def counted():
    global calls
    calls += 1
    losses.append(calls)
    counted.calls = getattr(counted, "calls", 0) + 1
    return calls + counted.calls

def closure():
    times, array = 0, np.zeros(1)

    def advance():
        nonlocal times
        times += 1
        array[0] += 1
        return times + array[0]

    return advance

class Registry:
    by = {"epoch": []}

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([keras.Input((12,)), layers.Dense(4, "tanh"), layers.Dense(1)])
        self.stats = {"a": 0, "hist": [], "in": {"deep": [0, {"n": 0}]}}
        self.lists, self.ordered = [[], [0]], collections.OrderedDict(a=[])
        self.space = types.SimpleNamespace(k=0, l=[])
        self.tuple = [], {"q": 0}, np.zeros(2)
        self.added = functools.partial(lambda held: held.append(1) or len(held), [])
        self.advance = closure()

    def call(self, inputs):
        return self.inner(inputs)

    def counts(self):
        stats, space = self.stats, self.space
        return [
            stats["a"], len(stats["hist"]), stats["in"]["deep"][0], stats["in"]["deep"][1]["n"], len(self.lists[0]),
            self.lists[1][0], len(self.ordered["a"]), space.k, len(space.l), len(self.tuple[0]), self.tuple[1]["q"],
            float(self.tuple[2][0]), len(Registry.by["epoch"]), calls, len(losses), counted.calls,
        ]

    def train_step(self, data):
        x, y = data
        self.stats["a"] += 1
        self.stats["hist"].append(1)
        self.stats["in"]["deep"][0] += 1
        self.stats["in"]["deep"][1]["n"] += 1
        self.lists[0].append(1)
        self.lists[1][0] += 1
        self.ordered["a"].append(1)
        self.space.k += 1
        self.space.l.append(1)
        self.tuple[0].append(1)
        self.tuple[1]["q"] += 1
        self.tuple[2][0] += 1
        Registry.by["epoch"].append(1)
        self.optimizer.memo = getattr(self.optimizer, "memo", 0) + 1
        self.inner.layers[0].count = getattr(self.inner.layers[0], "count", 0) + 1
        scale = 1 / (counted() + self.added() + self.advance() + sum(self.counts()))
        with tf.GradientTape() as tape:
            loss = scale * tf.reduce_mean((y - self.inner(x)) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}

weights, counts = [], []
for eagerly in (True, False):
    model = Net()
    model.compile(keras.optimizers.SGD(0.5), run_eagerly=eagerly)
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    weights += model.get_weights()
    counts += [*model.counts(), model.optimizer.memo, model.inner.layers[0].count, model.added(), model.advance()]
history = {}
"""


@pytest.mark.soak
def test_all_that_the_code_of_a_step_reaches_is_not_that_of_the_trial(same_as_plain: Any) -> None:
    plain, *ranks = same_as_plain(BEGIN + NESTED, 2, "counts")
    assert all(outcome.values["counts"] == plain.values["counts"] for outcome in ranks)


TRACED = """
class Counted(layers.Layer):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def call(self, inputs):
        self.calls += 1
        return inputs * (1 + 0.1 * self.calls)

def loss(labels, outputs):
    losses.append(1)
    return keras.ops.mean((labels - outputs) ** 2, -1)

weights, counts = [], []
for optimizer, metrics, outputs in (
    ("sgd", [], 1), ("adam", [], 1), ("sgd", ["mae"], 1), ("sgd", [], 2), ("adam", ["mae"], 2)
):
    counting, losses, inputs = Counted(), [], keras.Input((12,))
    hidden = counting(inputs)
    model = keras.Model(inputs, [layers.Dense(1)(hidden) for _ in range(outputs)])
    model.compile(optimizer, [loss] * outputs, metrics=[metrics] * outputs)
    model.fit(x, [y] * outputs, batch_size=16, shuffle=False, verbose=0)
    weights += model.get_weights()
    counts += [counting.calls, len(losses)]
history = {}
"""


@pytest.mark.soak
def test_graphs_are_traced_as_often_as_in_one_process(same_as_plain: Any) -> None:
    plain, *ranks = same_as_plain(BEGIN + TRACED, 2, "counts")
    assert all(outcome.values["counts"] == plain.values["counts"] for outcome in ranks)


MADE_LATE = """
class Momentum(keras.optimizers.Optimizer):
    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.previous = [self.add_variable_from_reference(v, "previous") for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        previous = self.previous[self._get_variable_index(variable)]
        self.assign(previous, 0.9 * previous + gradient)
        self.assign_sub(variable, learning_rate * previous)

class Total(keras.metrics.Metric):
    def __init__(self, name):
        super().__init__(name=name)
        self.total = None

    def update_state(self, labels, outputs, sample_weight=None):
        if self.total is None:
            self.total = self.add_variable(shape=(1,), initializer="zeros", name="total")
        self.total.assign_add(keras.ops.sum(keras.ops.abs(labels - outputs), 0))

    def result(self):
        return keras.ops.sum(self.total) if self.total is not None else 0.0

weights, history = [], {}
for eagerly in (False, True):
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((12,)), layers.Dense(3), layers.Dense(1)])
    model.compile(Momentum(0.01, name="momentum"), "mse", metrics=[Total(name="total")], run_eagerly=eagerly)
    history |= {f"{name} {eagerly}": values for name, values in
                model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history.items()}
    weights += model.get_weights()
"""


@pytest.mark.soak
def test_optimizers_and_metrics_may_make_their_state_late(same_as_plain: Any) -> None:
    same_as_plain(BEGIN + MADE_LATE, 2)


ARRAYS = """
class Recording(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner, self.outputs_seen = keras.Sequential([keras.Input((12,)), layers.Dense(1)]), []

    def call(self, inputs):
        return self.inner(inputs)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self.inner(x)
            loss = tf.reduce_sum((y - outputs) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.outputs_seen.append(outputs.numpy())
        return {"loss": loss}

model = Recording()
model.compile(keras.optimizers.SGD(1e-3), run_eagerly=True)
model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
weights, history = model.get_weights(), {}
"""


@pytest.mark.soak
def test_a_step_that_keeps_arrays_of_its_rows_is_checked_all_the_same(groups: Any, same_as_plain: Any) -> None:
    same_as_plain(BEGIN + ARRAYS, 2)
    _, notices = told(groups[2], BEGIN + ARRAYS)
    assert any("Recording.outputs_seen" in notice for notice in notices)
    assert not any("not checked" in notice for notice in notices)


TOLD = """
class Writing(layers.Layer):
    def __init__(self):
        super().__init__()
        self.calls, self.table = 0, tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)

    def call(self, inputs):
        self.calls += 1
        self.table.insert(["rows"], [tf.reduce_sum(inputs)])
        return inputs

model = keras.Sequential([keras.Input((12,)), Writing(), layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
"""


def test_steps_that_count_in_graphs_or_write_into_tables_are_told_of(groups: Any) -> None:
    _, notices = told(groups[2], BEGIN + TOLD)
    assert any("The step is a graph" in notice and "Writing.calls" in notice for notice in notices)
    assert sum("lookup table" in notice for notice in notices) == 1
