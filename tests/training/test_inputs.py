"""Every kind of input that Keras takes is shared out so that the ranks together do what one process does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.soak import every
from tests.training.conftest import assert_same_history, assert_same_weights, succeeded, told
from tests.training.harness import DATA, FED

COMPILE = """
model = mlp()
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), from_logits, metrics=["accuracy"])
"""
WEIGHTS = "weights = model.get_weights()\n"

DATASET = """
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(200).batch(29)
valid = tf.data.Dataset.from_tensor_slices((val_x, val_y)).batch(17)
history = model.fit(train, epochs=2, validation_data=valid, verbose=0).history
"""
REPEATED = """
train = tf.data.Dataset.from_tensor_slices((x, y)).batch(29, drop_remainder=True).repeat()
history = model.fit(train, epochs=3, steps_per_epoch=3, verbose=0).history
"""
GENERATOR = """
def batches():
    for _ in range(2):
        for start in range(0, 131, 29):
            yield x[start:start + 29], y[start:start + 29]


history = model.fit(batches(), epochs=2, steps_per_epoch=5, verbose=0).history
"""
PY_DATASET = """
class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return x[index * 29:(index + 1) * 29], y[index * 29:(index + 1) * 29]


history = model.fit(Batches(), epochs=2, shuffle=False, verbose=0).history
"""
SEQUENCE = """
class Batches(keras.utils.Sequence):
    def __init__(self):
        super().__init__(workers=2)
        self.rows = np.arange(131)

    def __len__(self):
        return 5

    def __getitem__(self, index):
        rows = self.rows[index * 29:(index + 1) * 29]
        return x[rows], y[rows]

    def on_epoch_end(self):
        np.random.shuffle(self.rows)


history = model.fit(Batches(), epochs=3, verbose=0).history
"""
FROM_GENERATOR = """
begun = []


def rows():
    begun.append(0)
    for row, label in zip(x, y):
        yield row * len(begun), label


spec = tf.TensorSpec((12,), tf.float32), tf.TensorSpec((), tf.int64)
train = tf.data.Dataset.from_generator(rows, output_signature=spec).shuffle(50).batch(29).prefetch(1)
history = model.fit(train, epochs=3, verbose=0).history
"""
PARTS = """
train, valid = keras.utils.split_dataset((x, y), left_size=0.8, shuffle=True)
history = model.fit(train.batch(29), epochs=2, validation_data=valid.batch(17), verbose=0).history
rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(131, reshuffle_each_iteration=False)
history["more"] = model.fit(rows.skip(30).batch(20), validation_data=rows.take(30).batch(9), verbose=0).history["loss"]
series = keras.utils.timeseries_dataset_from_array(x, y, sequence_length=1, batch_size=20, shuffle=True)
history["series"] = model.fit(series.map(lambda a, b: (a[:, 0], b)), verbose=0).history["loss"]
"""
DIRECTORIES = """
import pathlib, tempfile
root, draw = pathlib.Path(tempfile.mkdtemp()), np.random.default_rng(0)
for label in ("cat", "dog"):
    (root / "images" / label).mkdir(parents=True)
    (root / "texts" / label).mkdir(parents=True)
    for number in range(11):
        keras.utils.save_img(root / "images" / label / f"{number}.png", draw.integers(0, 255, (2, 2, 3)))
        (root / "texts" / label / f"{number}.txt").write_text(" ".join(draw.choice(["ox", "hen", "fox"], 12)))
options = {"label_mode": "int", "batch_size": 5, "verbose": False}
some = {"validation_split": 0.3, "subset": "both", "seed": 3}
train, valid = keras.utils.image_dataset_from_directory(root / "images", image_size=(2, 2), **options, **some)
flat = lambda image, label: (tf.reshape(image, (-1, 12)) / 255.0, label)
history = model.fit(train.map(flat), epochs=2, validation_data=valid.map(flat), verbose=0).history
texts = keras.utils.text_dataset_from_directory(root / "texts", **options)
words = keras.layers.TextVectorization(6, output_sequence_length=12)
words.adapt(texts.map(lambda text, label: text))
numbered = texts.map(lambda text, label: (tf.cast(words(text), tf.float32), label))
history["texts"] = model.fit(numbered, epochs=2, verbose=0).history["loss"]
"""
SPLIT = """
history = model.fit(x, y, validation_split=0.2, batch_size=29, epochs=2, validation_batch_size=11, verbose=0).history
"""
WORKERS = """
class Batches(keras.utils.PyDataset):
    def __init__(self):
        super().__init__(workers=2, max_queue_size=4)

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return x[index * 29:(index + 1) * 29], y[index * 29:(index + 1) * 29]


history = model.fit(Batches(), epochs=2, verbose=0).history
"""
WEIGHTED_GENERATOR = """
def batches():
    while True:
        for start in range(0, 131, 29):
            yield x[start:start + 29], y[start:start + 29], np.linspace(0.1, 1, len(x[start:start + 29]))


valid = tf.data.Dataset.from_tensor_slices((val_x, val_y)).batch(17).repeat()
history = model.fit(batches(), epochs=3, initial_epoch=1, steps_per_epoch=4, validation_data=valid,
                    validation_steps=2, validation_freq=2, verbose=0).history
history.update({"tested": model.evaluate(val_x, val_y, batch_size=10, verbose=0)})
"""
SPARSE = """
rows = tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(tf.where(tf.abs(x) > 1.0, x, 0.0)))
data = tf.data.Dataset.zip((rows, tf.data.Dataset.from_tensor_slices(y))).batch(26)  # the last has one row
model = keras.Sequential([keras.Input((12,), sparse=True), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
model.compile("adam", from_logits, metrics=["accuracy"])
history = model.fit(data, epochs=2, verbose=0).history
"""
RAGGED = """
lengths = np.arange(131) % 5 + 1
tokens = tf.RaggedTensor.from_row_lengths(np.random.default_rng(0).integers(0, 20, lengths.sum()), lengths)
data = tf.data.Dataset.from_tensor_slices((tokens, y)).batch(26)  # the last has one row


class Bag(keras.Model):
    def __init__(self):
        super().__init__()
        self.table, self.out = self.add_weight((20, 4), "glorot_uniform"), keras.layers.Dense(3)
        self.out.build((None, 4))

    def call(self, tokens):
        rows = tf.ragged.map_flat_values(lambda ids: tf.gather(tf.convert_to_tensor(self.table), ids), tokens)
        return self.out(tf.reduce_mean(rows, axis=1))


model = Bag()
model.compile("adam", from_logits, metrics=["accuracy"])
history = model.fit(data, epochs=2, verbose=0).history
"""
NUMBERED = """
import tfos_magic as tfos

def grow(number, batch):
    return batch[0] * (1.0 + 0.1 * tf.cast(number, tf.float32)), batch[1]


data = tfos.shard(tf.data.Dataset.from_tensor_slices((x, y)).batch(29)).enumerate().map(grow)
history = model.fit(data, epochs=2, verbose=0).history
"""
UNSHUFFLED = "history = model.fit(x, y, batch_size=29, epochs=2, shuffle=False, verbose=0).history\n"
BATCH_SHUFFLED = "history = model.fit(x, y, batch_size=29, epochs=2, shuffle='batch', verbose=0).history\n"


@pytest.mark.parametrize(
    "fit",
    every(
        16,
        [
            DATASET,
            REPEATED,
            GENERATOR,
            PY_DATASET,
            SEQUENCE,
            SPLIT,
            FROM_GENERATOR,
            PARTS,
            DIRECTORIES,
            UNSHUFFLED,
            BATCH_SHUFFLED,
        ],
    ),
    ids=[
        "dataset",
        "repeated",
        "generator",
        "pydataset",
        "sequence",
        "split",
        "from-generator",
        "parts",
        "directories",
        "unshuffled",
        "batch-shuffled",
    ],
)
def test_an_input_gives_the_weights_of_one_process(same_as_plain, fit: str) -> None:
    same_as_plain(DATA + COMPILE + fit + WEIGHTS, 2)


@pytest.mark.parametrize(
    "fit",
    every(5, [WORKERS, WEIGHTED_GENERATOR, SPARSE, RAGGED, NUMBERED]),
    ids=["pydataset-workers", "weighted-generator", "sparse", "ragged", "numbered"],
)
def test_an_input_of_which_ranks_may_have_no_rows_gives_the_weights_of_one_process(same_as_plain, fit: str) -> None:
    same_as_plain(DATA + COMPILE + fit + WEIGHTS, 3)


UNUSUAL = """
class Unusual(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = loss_of(self, data)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {{"loss": loss}}


def entropy(labels, outputs):
    return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True))


def loss_of(model, data):
    {loss}


model = Unusual()
model.build((None, 12))
model.compile(keras.optimizers.SGD(0.1){compiled})
train = tf.data.Dataset.from_tensor_slices((x, y)).batch(29)
history = model.fit({data}.map(lambda x, y: {element}), epochs=2, verbose=0).history
weights = model.get_weights()
"""
MIXED = "return 0.3 * entropy(data[1], model(data[0])) + 0.7 * entropy(data[2], model(data[0]))"
FACTOR = "return data['factor'] * entropy(data['y'], model(data['x']))"


@pytest.mark.soak
@pytest.mark.parametrize("data", ["train", "fed(train)"])
@pytest.mark.parametrize(
    ("element", "loss", "compiled"),
    [
        ("(x, y, (y + 1) % 3, tf.constant(0.3))", MIXED, ""),
        ("(x, y, (y + 1) % 3, tf.constant(0.3))", MIXED, ", from_logits"),
        ("{'factor': tf.constant(0.3), 'x': x, 'y': y}", FACTOR, ""),
        ("(x, y, None)", "return entropy(data[1], model(data[0]))", ""),
    ],
    ids=["four", "four-compiled", "scalar-first", "none"],
)
def test_elements_that_a_step_of_ones_own_takes(same_as_plain, element: str, loss: str, compiled: str, data: str):
    start = "SIZE = collectives.size if collectives else 0\n" + DATA + FED
    same_as_plain(start + UNUSUAL.format(element=element, loss=loss, compiled=compiled, data=data), 2)


@pytest.mark.soak
@pytest.mark.parametrize(
    "loss", ["entropy(data[1], model(data[0]))", "sum_of(entropy(data[1], model(data[0])), *data)"]
)
def test_a_generator_may_give_none(same_as_plain, loss: str) -> None:
    cell = UNUSUAL.format(element="(x, y)", loss=f"return {loss}", compiled="", data="given()").replace(
        "given().map(lambda x, y: (x, y)), epochs=2", "given(), epochs=2, steps_per_epoch=4"
    )
    given = """
def given():
    for start in (0, 29, 58, 87) * 2:
        yield x[start:start + 29], y[start:start + 29], None


def sum_of(mean, inputs, labels, weights):
    rows = tf.cast(tf.shape(inputs)[0], tf.float32)
    return mean * (rows if weights is None else weights)


"""
    same_as_plain(DATA + given + cell, 2)


@pytest.mark.parametrize("data", ["train", "fed(train)"])
def test_a_vector_per_batch_is_refused(groups, data: str) -> None:
    fit = f"model.fit({data}.map(lambda x, y: (x, y, tf.constant([2.0]))), verbose=0)"
    for outcome in groups[2].run("SIZE = 2\n" + DATA + FED + COMPILE + fit):
        assert "a value per batch as a scalar" in outcome.error


@pytest.mark.soak
def test_several_inputs_by_name_with_ragged_last_batches_give_the_weights_of_one_process(same_as_plain) -> None:
    cell = DATA + (
        """
left, right = keras.Input((5,), name="left"), keras.Input((7,), name="right")
joined = keras.layers.Concatenate()([left, right])
model = keras.Model([left, right], [keras.layers.Dense(3, name="a")(joined), keras.layers.Dense(1, name="b")(joined)])
model.compile("adam", {"a": from_logits, "b": "mse"}, metrics={"a": "accuracy"})
inputs = {"left": x[:, :5], "right": x[:, 5:]}
history = model.fit(inputs, {"a": y, "b": y.astype("float32")}, batch_size=50, epochs=2, verbose=0).history
weights = model.get_weights()
"""
    )
    same_as_plain(cell, 2)


def test_a_fed_dataset_whose_ranks_hold_uneven_or_empty_shares_gives_the_weights_of_one_process(groups) -> None:
    cell = (
        DATA
        + COMPILE
        + (
            """
from tfos_magic.training.inputs.marks import mark_sharded

BOUNDS = {0: (0, 0), 1: (0, 3), 2: (3, 29)}  # of each global batch: nothing, a little, the rest


def share(begin, end):
    def batches():
        for start in range(0, 131, 29):
            yield x[start:start + 29][begin:end], y[start:start + 29][begin:end]

    spec = tf.TensorSpec((None, 12), tf.float32), tf.TensorSpec((None,), tf.int64)
    return tf.data.Dataset.from_generator(batches, output_signature=spec).apply(
        tf.data.experimental.assert_cardinality(5))


fed = share(*BOUNDS[rank]) if SIZE else share(0, 29)
fed = (mark_sharded(fed) if SIZE else fed).map(lambda a, b: (a * 1.0, b)).cache().prefetch(2)
history = model.fit(fed, epochs=3, validation_data=fed, verbose=0).history
weights = model.get_weights()
"""
        )
    )
    expected = groups.plain("SIZE = 0\n" + cell, "weights", "history")
    outcomes = succeeded(groups[3].run("SIZE = 3\n" + cell, "weights", "history"))
    assert_same_weights(outcomes, expected.values["weights"], 1e-5)
    for outcome in outcomes:
        assert_same_history(outcome.values["history"], expected.values["history"])


@pytest.mark.soak
def test_a_generator_that_two_fits_share_is_left_at_the_same_place_on_every_rank(groups) -> None:
    cell = (
        DATA
        + COMPILE
        + (
            """
read = []


def batches():
    while True:
        rows = np.random.randint(0, 131, 29)
        read.append(len(read))
        yield x[rows], y[rows]


left, source = [], batches()
for epochs, steps in ((3, 4), (2, 3)):
    model.fit(source, epochs=epochs, steps_per_epoch=steps, verbose=0)
    left.append(len(read))
weights = model.get_weights()
"""
        )
    )
    outcomes = succeeded(groups[2].run(cell, "weights", "left"))
    for outcome in outcomes:  # one batch is read ahead, as Keras does
        assert outcome.values["left"] == [13, 20]
    assert_same_weights(outcomes, outcomes[0].values["weights"], 0.0)


def test_predict_sees_all_rows_on_every_rank_even_during_fit(groups) -> None:
    cell = (
        DATA
        + COMPILE
        + (
            """
shapes = []
look = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: shapes.append(model.predict(val_x, verbose=0).shape))
model.fit(x, y, batch_size=29, verbose=0, callbacks=[look])
shapes.append(model.predict(x, batch_size=10).shape)
"""
        )
    )
    for outcome in succeeded(groups[2].run(cell, "shapes")):
        assert outcome.values["shapes"] == [(39, 3), (131, 3)]


AUGMENTED = {
    "tf.random in a map": """
def changed(row, label):
    return row * tf.random.uniform((), 0.5, 1.5), label


train = tf.data.Dataset.from_tensor_slices((x, y)).map(changed, num_parallel_calls=CALLS).batch(29).prefetch(1)
""",
    "a layer in a map, in any order": """
noise = keras.layers.GaussianNoise(0.5)
options = tf.data.Options()
options.deterministic = False
train = tf.data.Dataset.from_tensor_slices((x, y)).batch(29).with_options(options)
train = train.map(lambda rows, labels: (noise(rows, training=True), labels), CALLS, deterministic=False)
""",
    "shuffled files, several at once": """
def part(start):
    rows = tf.data.Dataset.from_tensor_slices((x, y)).skip(start).take(20)
    return rows.map(lambda row, label: (row + tf.random.normal((12,)), label), num_parallel_calls=CALLS)


starts = tf.data.Dataset.range(0, 120, 20)
train = starts.interleave(part, 3, 2, num_parallel_calls=CALLS, deterministic=False).batch(29)
""",
}


@pytest.mark.soak
@pytest.mark.parametrize("pipeline", AUGMENTED.values(), ids=list(AUGMENTED))
def test_random_numbers_of_a_parallel_map_are_those_of_calls_in_turn(groups, pipeline: str) -> None:
    told: list[str] = []

    def note(rank: int, message: object) -> None:
        if "one call at a time" in (text := getattr(message, "text", "")):
            told.append(text)

    cell = DATA + COMPILE + pipeline + "model.fit(train, epochs=2, verbose=0)\n" + WEIGHTS
    expected = groups[0].run("CALLS = None\n" + cell.replace("=False", "=True"), "weights")[0]
    outcomes = succeeded(groups[2].run("CALLS = 3\n" + cell, "weights", on_message=note))
    assert_same_weights(outcomes, expected.values["weights"], 1e-5)
    assert told


@pytest.mark.parametrize("kind", every(3, ["arrays", "generator", "fed"]))
def test_inputs_of_different_numbers_of_rows_are_refused(groups, kind: str) -> None:
    cell = f"""SIZE = 2
{DATA}{FED}
few, many = (tf.data.Dataset.from_tensor_slices(x[:n]).batch(16) for n in (40, 45))
if {kind!r} == "fed":
    few, many = fed(few), fed(many)
elif {kind!r} == "generator":
    rows = [(x[:16], x[:48])] * 3
    few, many = (tf.data.Dataset.from_generator(
        lambda part=part: (row[part] for row in rows), output_signature=tf.TensorSpec((None, 12))) for part in (0, 1))


class Two(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_mean(self.dense(part) ** 2) for part in data)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {{"loss": loss}}


model = Two()
model.compile("sgd")
model.dense.build((None, 12))
model.fit(tf.data.Dataset.zip(few, many), epochs=1, verbose=0)
"""
    outcomes = groups[2].run(cell)
    assert any("different numbers of rows" in outcome.error for outcome in outcomes), outcomes
    assert all(outcome.kind for outcome in outcomes)


@pytest.mark.soak
def test_a_step_that_finds_its_data_at_their_end_changes_no_state_of_an_optimizer(same_as_plain) -> None:
    cell = (
        DATA
        + """
tokens = np.random.default_rng(3).integers(1, 15, (72, 8))
model = keras.Sequential(
    [keras.layers.Embedding(15, 6), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2, "softmax")]
)
model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
rows = tf.data.Dataset.from_tensor_slices((tokens, tokens.sum(1) % 2)).filter(lambda x, y: x[0] > 0).batch(8)
history = model.fit(rows, epochs=12, verbose=0).history
velocities = [variable.numpy() for variable in model.optimizer.variables]
weights = model.get_weights()
"""
    )
    expected, *outcomes = same_as_plain(cell, 2, "velocities", tolerance=2e-6)
    for outcome in outcomes:
        for mine, plain in zip(outcome.values["velocities"], expected.values["velocities"], strict=True):
            np.testing.assert_allclose(mine, plain, rtol=1e-4, atol=1e-9)


LOOKED_AT = """
x, y = np.random.normal(size=(700, 6)).astype("float32"), np.ones((700, 1), "float32")
flip = keras.layers.GaussianNoise(0.5)
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(700)
train = train.map(lambda a, b: (flip(a, training=True) + keras.random.uniform((1,)), b)).batch(16)
train = train.prefetch(tf.data.AUTOTUNE)
first, _ = next(iter(train))
for images, _ in train.take(1):
    pass
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(train, epochs=2, verbose=0)
weights = model.get_weights()
"""


@pytest.mark.soak
def test_data_that_were_looked_at_before_are_augmented_alike_on_all_workers(groups) -> None:
    outcomes = succeeded(groups[2].run(DATA + LOOKED_AT, "weights"))
    assert_same_weights(outcomes, outcomes[0].values["weights"], 0.0)


AHEAD = """
def rows():
    for _ in range(3200):
        yield tf.random.normal((6,)).numpy(), np.random.uniform(size=1).astype("float32")


class Augmented(keras.utils.PyDataset):
    def __len__(self):
        return 200

    def __getitem__(self, batch):
        part = slice(16 * batch, 16 * batch + 16)
        return flip(features[part], training=True) + tf.random.normal((16, 6)), ones[part]


flip = keras.layers.GaussianNoise(0.5)
signature = (tf.TensorSpec((6,)), tf.TensorSpec((1,)))
features, ones = np.random.normal(size=(3200, 6)).astype("float32"), np.ones((3200, 1), "float32")
train = {
    "a generator": lambda: tf.data.Dataset.from_generator(rows, output_signature=signature).batch(16).prefetch(200),
    "a PyDataset": lambda: Augmented(),
    "Keras": lambda: tf.data.Dataset.from_tensor_slices((features, ones))
    .map(lambda a, b: (a + keras.random.normal((6,)), b)).batch(16).prefetch(200),
}[SOURCE]()
layers = [keras.layers.Dense(32, "relu") for _ in range(10)]
model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(train, epochs=2, verbose=0).history
weights = model.get_weights()
"""


@pytest.mark.soak
@pytest.mark.parametrize("source", ["Keras", "a generator", "a PyDataset"])
def test_a_pipeline_draws_while_the_first_step_is_tried_and_traced(same_as_plain, source: str) -> None:
    """What steps draw is parted and put back; what an input pipeline draws meanwhile, in other threads, is not."""
    same_as_plain(DATA + f"SOURCE = {source!r}" + AHEAD, 2)


PASSES = """
rows = tf.data.Dataset.from_tensor_slices((x[:100], y[:100]))
train = rows.shuffle(100).repeat().batch(10).prefetch(tf.data.AUTOTUNE)
histories, weights = [], []
for _ in range(2):
    model = mlp()
    model.compile("sgd", from_logits)
    histories += [model.fit(train, steps_per_epoch=3, epochs=4, verbose=0).history]
    weights += model.get_weights()
"""


@pytest.mark.soak
def test_shuffled_passes_that_repeat_go_on_in_one_order_on_all_workers_and_time_is_said_to_decide(groups) -> None:
    """Eight batches are left of the pass in which a fit() ends: one process reads no further ahead than that."""
    plain = groups.plain(DATA + PASSES, "weights").values["weights"]
    outcomes, notices = told(groups[2], DATA + PASSES, "weights")
    assert_same_weights(outcomes, plain, 1e-5)
    assert any("repeats shuffled passes was left in the middle" in notice for notice in notices), notices


SEEDED_ALONE = """
import keras, numpy as np, tensorflow as tf
features = np.random.default_rng(5).normal(size=(64, 3)).astype("float32")


def drawn():
    in_graph = tf.function(lambda: tf.random.normal([], seed=4))
    order = tf.data.Dataset.range(20).shuffle(20, seed=3)
    return [float(tf.random.uniform([], seed=3)), float(in_graph()), float(in_graph()), *order.as_numpy_iterator()]


seeded, free = drawn(), float(tf.random.uniform([]))
train = tf.data.Dataset.from_tensor_slices((features, features[:, :1])).shuffle(64, seed=3).batch(10)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer=keras.initializers.Zeros())])
model.compile("adam", "mse")
history = model.fit(train, epochs=2, verbose=0).history
weights = model.get_weights()
tf.random.set_seed(9)
seeded += drawn()
"""


@pytest.mark.soak
def test_what_has_a_seed_of_its_own_draws_by_that_alone_where_nothing_else_is_seeded(groups) -> None:
    plain, again = (groups[0].run(SEEDED_ALONE, "weights", "seeded", "free", seed=None)[0] for _ in range(2))
    outcomes = succeeded(groups[2].run(SEEDED_ALONE, "weights", "seeded", "free", seed=None))
    assert plain.values["seeded"] == again.values["seeded"]
    assert plain.values["free"] != again.values["free"]
    assert_same_weights(outcomes, plain.values["weights"], 1e-5)
    for outcome in outcomes:
        assert outcome.values["seeded"] == plain.values["seeded"]
        assert outcome.values["free"] == outcomes[0].values["free"]
