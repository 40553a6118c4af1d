"""Names that a cell was asked for, packed in one process and read in another: what comes, and in which form."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfos_magic.cluster.runs.request import RunRequest
from tfos_magic.cluster.runs.results import RunResults, kernels_keras
from tfos_magic.cluster.runs.state import RunState
from tfos_magic.errors import CaptureError
from tfos_magic.transport.messages import RunFinished
from tfos_magic.values import originals, pack, unpack
from tfos_magic.values.pickler import Pickler
from tfos_magic.values.unpickler import Unpickler
from tfos_magic.worker import outputs

pytestmark = pytest.mark.slow

WORKER = """
import pickle, sys
from tfos_magic.worker.cell import execute, main_module
from tfos_magic.worker.outputs import pack_outputs
from tfos_magic.transport.messages import RunCell

source, after, names, versions, path = pickle.load(sys.stdin.buffer)
packed = {}
cell = RunCell("r", source, "<run 7>", "none", 0, names)
with main_module(cell) as namespace:
    execute(cell, namespace)
    for version in versions:
        made = pack_outputs(names, namespace, version)
        packed[version] = (made.parcels, [bytes(memory) for memory in made.buffers], made.missing, made.notices)
    exec(after, namespace)
    packed["after"] = namespace["after"]
with open(path, "wb") as file:
    pickle.dump(packed, file)
"""

CELL = """
import threading
import keras, numpy as np, tensorflow as tf
from keras import layers, ops

x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
y = (x[:, :1] > 0).astype("float32")
fit = dict(batch_size=8, epochs=2, shuffle=False, verbose=0)
keras.utils.set_random_seed(1)

class GAN(keras.Model):
    def __init__(self, generator, critic):
        super().__init__()
        self.generator, self.critic = generator, critic
        self.seeds = keras.random.SeedGenerator(5)
    def compile(self, first, second, loss):
        super().compile()
        self.first, self.second, self.loss_function = first, second, loss
        self.mean = keras.metrics.Mean("loss")
    @tf.function
    def step(self, real):
        noise = keras.random.normal((8, 8), seed=self.seeds)
        with tf.GradientTape(persistent=True) as tape:
            fooled = self.loss_function(tf.ones((8, 1)), self.critic(self.generator(noise)))
            right = self.loss_function(tf.ones((8, 1)), self.critic(real))
        for optimizer, model, loss in ((self.first, self.generator, fooled), (self.second, self.critic, right)):
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        self.mean.update_state(fooled)
        return {"loss": self.mean.result()}
    def train_step(self, data):
        return self.step(data[0])

def gan():
    made = GAN(keras.Sequential([layers.Dense(8)]), keras.Sequential([layers.Dense(1)]))
    made.compile(keras.optimizers.Adam(0.01), keras.optimizers.RMSprop(0.01), keras.losses.BinaryCrossentropy(True))
    return made

def deep():
    inputs = hidden = keras.Input((8,))
    for _ in range(150):
        hidden = layers.Activation("tanh")(hidden)
    hidden = layers.Lambda(lambda values: values * factor)(layers.Dropout(0.3)(layers.Dense(4)(hidden)))
    made = keras.Model(inputs, layers.Dense(1)(hidden + 1.0))
    made.compile(keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=3), "mse", metrics=["mae"])
    return made

factor = 2.0

class OwnLoss(keras.losses.Loss):
    def call(self, target, output):
        return ops.mean((target - output) ** 2, -1)

class OwnMetric(keras.metrics.Metric):
    def __init__(self, **options):
        super().__init__(**options)
        self.total = self.add_weight(name="total", initializer="zeros")
    def update_state(self, target, output, sample_weight=None):
        self.total.assign_add(ops.sum(ops.abs(target - output)))
    def result(self):
        return self.total

@keras.saving.register_keras_serializable("own")
class OwnLayer(layers.Layer):
    def __init__(self, units, **options):
        super().__init__(**options)
        self.units, self.count = units, tf.Variable(3)
    def build(self, shape):
        self.matrix = self.add_weight(shape=(shape[-1], self.units))
    def call(self, inputs):
        return inputs @ self.matrix
    def get_config(self):
        return {**super().get_config(), "units": self.units}

def own():
    made = keras.Sequential([OwnLayer(5), layers.BatchNormalization(), layers.GaussianNoise(0.1, seed=3), OwnLayer(1)])
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9)
    made.compile(keras.optimizers.SGD(rate, momentum=0.9), OwnLoss(), metrics=[OwnMetric()])
    return made

models, further = {}, {}
for make in (gan, deep, own):
    models[make.__name__] = make()
    models[make.__name__].fit(x, y, **fit)

unbuilt = own()
text = layers.TextVectorization(output_mode="int", output_sequence_length=4)
text.adapt(["a b c", "b c", "c"])
scaling = layers.Normalization()
scaling.adapt(x)
table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
table.insert(tf.constant(["k"]), tf.constant([7], tf.int64))
stopping = keras.callbacks.EarlyStopping("loss", patience=3)
board = keras.callbacks.TensorBoard("logs", write_graph=False)
observed = keras.Sequential([layers.Dense(1)])
observed.compile("sgd", "mse")
history = observed.fit(x, y, epochs=2, verbose=0, callbacks=[stopping, board])
broken = keras.Sequential([layers.Dense(1)])
broken.compile("sgd", "mse")
fails = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: 1 / (1 - epoch))
try:
    broken.fit(x, y, epochs=2, verbose=0, validation_data=(x, y), callbacks=[fails])
except ZeroDivisionError:
    pass
tensor, ragged = tf.constant([1, 2], tf.int64), tf.ragged.constant([[1], [2, 3]])
half, words = tf.constant([1.5], tf.bfloat16), tf.constant(["ä", "b"])
variable = tf.Variable([1.0, 2.0], trainable=False, name="mine")
array = np.arange(1 << 20)
view = array[:4]
class Tokenizer:
    def __init__(self):
        self.words, self.lock, self.source = {"a": 1}, threading.Lock(), (i for i in range(3))
tokenizer = Tokenizer()
dataset = tf.data.Dataset.range(3).map(lambda n: n * 2)
iterator = iter(dataset)
generator = (i for i in range(3))
class Fed(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense = layers.Dense(2)
    def call(self, inputs):
        return self.dense(inputs)
    def __getstate__(self):
        raise TypeError("this model is not to be pickled")
fed = Fed()
fed.compile("adam", "mse")
fed.fit(x, y, epochs=1, verbose=0)
class Stubborn(Fed):
    def get_config(self):
        raise RuntimeError("nor to be saved")
stubborn = Stubborn()
stubborn(x)
import matplotlib
matplotlib.use("agg")
from matplotlib import pyplot
class Penalised(keras.Layer):
    def call(self, inputs):
        self.penalty = keras.ops.sum(inputs)
        return inputs
penalised = keras.Sequential([Penalised()])
penalised.predict(x, verbose=0)
figure, axes = pyplot.subplots()
axes.plot([1, 2, 3])
"""

AFTER = """
after = {name: [v.numpy() for v in model.variables] for name, model in models.items() if model.fit(x, y, **fit)}
"""


class Worker:
    """What the cell's names became, by the version of Keras that the notebook has."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        path = folder / "packed"
        task = pickle.dumps((CELL, AFTER, list(names), [kernels_keras(), "", "2.99"], str(path)))
        subprocess.run([sys.executable, "-c", WORKER], input=task, check=True, cwd=folder, timeout=300)
        self._packed = pickle.loads(path.read_bytes())
        self.after = self._packed["after"]

    def results(self, names: Sequence[str] = (), version: str | None = None) -> tuple[RunResults, RunState]:
        """Those of ``names`` alone, arrived in the notebook."""
        parcels, buffers, missing, notices = self._packed[kernels_keras() if version is None else version]
        wanted = [parcel for parcel in parcels if not names or set(parcel["names"]) & set(names)]
        refused = [text for text in missing if not names or text.partition(":")[0] in names]
        state = RunState("r", "run 7", "sync", [])
        results = RunResults(state, RunRequest(""))
        for part in outputs._parts("r", 0, [memoryview(data) for data in buffers]):
            results.take(part)
        results.note({0: RunFinished("r", 0, "ok", missing=refused, parcels=wanted)})
        state.notices += [text for text in notices if not names or text.split()[0] in names]
        return results, state

    def values(self, *names: str, version: str | None = None) -> dict[str, Any]:
        return self.results(names, version)[0].values()


NAMES = [
    "models",
    "unbuilt",
    "own",
    "OwnLayer",
    "text",
    "scaling",
    "table",
    "stopping",
    "board",
    "history",
    "observed",
    "broken",
    "figure",
    "tokenizer",
    "fed",
    "stubborn",
    "penalised",
    "tensor",
    "ragged",
    "half",
    "words",
    "variable",
    "array",
    "view",
    "factor",
    "dataset",
    "iterator",
    "generator",
    "nowhere",
]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Worker:
    return Worker(tmp_path_factory.mktemp("worker"), NAMES)


@pytest.mark.soak
def test_models_go_on_as_if_they_had_stayed(worker: Worker) -> None:
    models = worker.values("models")["models"]
    x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    for name, model in models.items():
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        for mine, theirs in zip(model.variables, worker.after[name], strict=True):
            np.testing.assert_array_equal(mine.numpy(), theirs, err_msg=name)
    assert models["own"].layers[0].count.numpy() == 3
    assert models["own"].get_compile_config() is not None


def test_definitions_of_the_cell_come_along_and_a_model_can_be_saved_and_loaded_with_them(
    worker: Worker, tmp_path: Path
) -> None:
    values = worker.values("own", "unbuilt", "OwnLayer")
    assert isinstance(values["unbuilt"].layers[0], values["OwnLayer"])
    assert keras.saving.get_registered_object("own>OwnLayer") is values["OwnLayer"]
    made = keras.Sequential([keras.Input((2,)), values["OwnLayer"](3)])
    made.save(tmp_path / "made.keras")
    loaded = keras.saving.load_model(tmp_path / "made.keras")
    np.testing.assert_array_equal(loaded(np.eye(2)), made(np.eye(2)))
    assert values["unbuilt"](np.ones((1, 3), "float32")).shape == (1, 1)


def test_layers_and_tables_keep_what_they_learned(worker: Worker) -> None:
    values = worker.values("text", "scaling", "table")
    assert values["text"](["c b zz"]).numpy().tolist() == [[2, 3, 1, 0]]
    assert values["text"].get_vocabulary() == ["", "[UNK]", "c", "b", "a"]
    assert values["scaling"].mean.shape == (1, 8)
    assert values["table"].lookup(tf.constant(["k", "?"])).numpy().tolist() == [7, -1]


def test_tensors_and_variables_stay_what_they_are(worker: Worker) -> None:
    values = worker.values("tensor", "ragged", "half", "words", "variable")
    assert (values["tensor"].dtype, values["half"].dtype) == (tf.int64, tf.bfloat16)
    assert values["ragged"].to_list() == [[1], [2, 3]]
    assert values["words"].numpy()[0].decode() == "ä"
    assert not values["variable"].trainable
    assert values["variable"].assign_add([1.0, 1.0]).numpy().tolist() == [2.0, 3.0]


def test_callbacks_history_and_figures_come_and_share_their_model(worker: Worker) -> None:
    values = worker.values("stopping", "board", "history", "figure", "observed")
    assert values["stopping"].model is values["observed"] is values["board"].model
    assert len(values["history"].history["loss"]) == 2
    assert len(values["figure"].axes[0].lines) == 1
    x = np.ones((8, 8), "float32")
    values["observed"].fit(x, x[:, :1], verbose=0, callbacks=[values["stopping"]])


def test_a_model_whose_training_failed_comes_whole(worker: Worker) -> None:
    results, state = worker.results(["broken"])
    broken, x = results.values()["broken"], np.ones((8, 8), "float32")
    assert not state.notices
    assert "val_loss" in broken.fit(x, x[:, :1], verbose=0, validation_data=(x, x[:, :1])).history


def test_arrays_that_share_memory_share_it_and_can_be_written_to(worker: Worker) -> None:
    values = worker.values("array", "view")
    values["array"][0] = 5
    assert values["array"].nbytes == 1 << 23
    assert values["view"].tolist() == [0, 1, 2, 3]


def test_what_cannot_be_sent_within_an_object_stays_behind_and_says_so(worker: Worker) -> None:
    results, state = worker.results(["tokenizer"])
    tokenizer = results.values()["tokenizer"]
    assert tokenizer.words == {"a": 1}
    with tokenizer.lock:
        pass
    assert state.notices == ["tokenizer came back without what cannot be sent (generator): using that says so."]
    with pytest.raises(AttributeError, match="generator could not be sent"):
        tokenizer.source.send(1)


def test_a_model_that_refuses_to_be_pickled_is_rebuilt_or_comes_as_its_weights(worker: Worker) -> None:
    results, state = worker.results(["fed"])
    fed = results.values()["fed"]
    assert int(fed.optimizer.iterations) == 1
    assert len(fed.optimizer.variables) == 6
    assert state.notices == [
        "fed was rebuilt from its class and weights, because it cannot be sent as it is (TypeError: this model is not "
        "to be pickled): what was set after it was created is missing."
    ]
    results, state = worker.results(["stubborn"])
    assert sorted(path.rpartition("/")[2] for path in results.values()["stubborn"]) == ["bias", "kernel"]
    assert "stubborn came back as its weights, a dict of arrays" in state.notices[0]


def test_a_dataset_is_made_again_where_it_arrives(worker: Worker) -> None:
    assert [int(number) for number in worker.values("dataset")["dataset"]] == [0, 2, 4]


def test_names_that_cannot_come_say_why_and_lose_no_others(worker: Worker) -> None:
    with pytest.raises(CaptureError) as caught:
        worker.values("factor", "iterator", "generator", "nowhere")
    assert caught.value.values == {"factor": 2.0}
    text = str(caught.value)
    assert "iterator: PicklingError: a OwnedIterator reads data where it was made: bring back the arrays" in text
    assert "generator: TypeError: cannot pickle 'generator' object" in text
    assert "nowhere: the cell did not define it" in text


def test_without_tensorflow_models_are_weights_and_tensors_arrays(worker: Worker) -> None:
    results, state = worker.results(["observed", "tensor", "ragged", "variable", "stopping"], "")
    values = results.values()
    assert type(values["tensor"]) is type(values["variable"]) is np.ndarray
    assert values["ragged"] == [[1], [2, 3]]
    assert values["stopping"].patience == 3
    (kernel,) = (array for path, array in values["observed"].items() if path.endswith("kernel"))
    loaded = keras.saving.load_model(values["observed"].file)
    np.testing.assert_array_equal(loaded.layers[0].kernel.numpy(), kernel)
    assert f"and as the file {values['observed'].file} (observed.file)" in state.notices[-1]


def test_a_notebook_with_another_keras_gets_models_by_their_archive(worker: Worker) -> None:
    results, state = worker.results(["observed"], "2.99")
    assert int(results.values()["observed"].optimizer.iterations) == 2
    assert "the notebook has Keras 2.99" in state.notices[0]


def test_a_buffer_is_sent_in_pieces_no_further_ahead_than_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from queue import SimpleQueue

    monkeypatch.setattr(outputs, "PART_BYTES", 3)
    monkeypatch.setattr(outputs, "PATIENCE", 0.01)
    sent: list[Any] = []
    with pytest.raises(outputs.ClusterError, match="accepted none"):
        outputs.send_parts("r", 0, [memoryview(b""), memoryview(b"abcdefgh" * 4)], sent.append, SimpleQueue())
    assert [part.payload for part in sent] == [b"", b"abc", b"def", b"gha"]
    assert {part.total for part in sent} == {32}


def test_models_of_the_notebook_that_come_back_are_the_same_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    keras.utils.set_random_seed(3)
    encoder = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation="relu")])
    model = keras.Sequential([encoder, keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    sibling = keras.Sequential([keras.Input((3,)), encoder])
    model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    x, y = np.random.default_rng(0).normal(size=(16, 3)), np.ones((16, 1))
    before, kernel = sibling.predict(x, verbose=0), encoder.layers[0].kernel.value
    model.evaluate(x, y, verbose=0)
    payload, file = pack({"model": model}), io.BytesIO()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(originals, "_TOKENS", {})
        elsewhere.setattr(originals, "_OBJECTS", weakref.WeakValueDictionary())
        there = unpack(payload, {})["model"]
        there.fit(x, y, epochs=2, verbose=0, shuffle=False)
        Pickler(file).dump_all({"model": there})
    assert there is not model
    back = Unpickler(io.BytesIO(file.getvalue()), keeps=True, main={}).load_all()["model"]
    assert back is model
    assert back.layers[0] is encoder
    assert encoder.layers[0].kernel.value is kernel
    assert np.abs(sibling.predict(x, verbose=0) - before).max() > 1e-3
    np.testing.assert_allclose(sibling.predict(x, verbose=0), there.layers[0].predict(x, verbose=0), atol=1e-6)
    histories = [m.fit(x, y, epochs=2, verbose=0, shuffle=False).history for m in (there, model)]
    assert histories[0] == histories[1]
    np.testing.assert_allclose(encoder.get_weights()[0], there.layers[0].get_weights()[0], atol=1e-6)
    apart = Unpickler(io.BytesIO(file.getvalue()), keeps=True).load_all()["model"]
    assert apart is not model


def test_the_graph_of_a_functional_model_of_the_notebook_is_the_notebooks_own_when_it_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = keras.Input((3,))
    code = keras.layers.Dense(2, name="code")(inputs)
    outputs = keras.layers.Dense(1)(code)
    model = keras.Model(inputs, outputs)
    payload, file = pack({"model": model}), io.BytesIO()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(originals, "_TOKENS", {})
        elsewhere.setattr(originals, "_OBJECTS", weakref.WeakValueDictionary())
        there = unpack(payload, {})["model"]
        Pickler(file).dump_all({"model": there})
    back = Unpickler(io.BytesIO(file.getvalue()), keeps=True, main={}).load_all()["model"]
    assert back is model
    assert back.input is inputs
    x = np.ones((4, 3), "float32")
    for made in (keras.Model(inputs, code), keras.Model(back.input, back.get_layer("code").output)):
        np.testing.assert_array_equal(made(x), there.get_layer("code")(x))
    assert keras.Model(inputs, keras.layers.Dense(5)(outputs))(x).shape == (4, 5)


def test_a_functional_model_that_a_cell_made_has_its_configuration_in_the_notebook(tmp_path: Path) -> None:
    inputs = keras.Input((3,))
    shared = keras.layers.Dense(3)
    inner = keras.Model(inputs, keras.layers.Add()([shared(inputs), shared(keras.ops.square(inputs))]))
    outer = keras.Input((3,))
    model = keras.Model(outer, keras.layers.Dense(1)(inner(outer)))
    file, x = io.BytesIO(), np.ones((4, 3), "float32")
    Pickler(file).dump_all(model)
    came = Unpickler(io.BytesIO(file.getvalue()), keeps=True, main={}).load_all()
    assert came.get_config() == model.get_config()
    came.save(tmp_path / "model.keras")
    for again in (keras.models.load_model(tmp_path / "model.keras"), copy.deepcopy(came)):
        np.testing.assert_array_equal(again(x), model(x))


def test_a_model_of_the_notebook_that_holds_tensors_of_a_traced_step_can_be_sent() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activity_regularizer="l1")])
    model.compile("sgd", "mse")
    x = np.ones((4, 3))
    model.fit(x, np.ones((4, 2)), verbose=0)
    there = unpack(pack({"model": model}), {})["model"]
    assert there.fit(x, np.ones((4, 2)), verbose=0).history == model.fit(x, np.ones((4, 2)), verbose=0).history


def test_a_tensor_of_a_traced_function_is_missed_by_nobody(worker: Worker) -> None:
    results, state = worker.results(["penalised"])
    penalised = results.values()["penalised"]
    assert penalised.predict(np.ones((2, 3)), verbose=0).tolist() == [[1.0] * 3] * 2
    assert state.notices == []


def test_a_model_that_has_travelled_can_be_kept_by_tensorflows_own_checkpoints(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
    came = unpack(pack({"model": model}), {})["model"]
    kept = tf.train.Checkpoint(model=came, optimizer=came.optimizer).save(str(tmp_path / "kept"))
    weights = came.get_weights()
    came.set_weights([0 * each for each in weights])
    tf.train.Checkpoint(model=came, optimizer=came.optimizer).restore(kept).assert_existing_objects_matched()
    for mine, other in zip(came.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_model_whose_optimizer_has_a_variable_without_a_value_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(y_true: Any, y_pred: Any) -> Any:
        raise NameError("no such name")

    x = np.ones((4, 3))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Nadam(), "mse", metrics=[wrong])
    with pytest.raises(NameError):
        model.fit(x, x[:, :1], verbose=0)
    file = io.BytesIO()
    Pickler(file, lenient=True).dump_all({"model": model})
    came = Unpickler(io.BytesIO(file.getvalue()), keeps=True).load_all()["model"]
    assert came.optimizer._u_product.numpy().size == 0
    came.compile("adam", "mse", metrics=["mae"])
    assert len(came.fit(x, x[:, :1], verbose=0).history["mae"]) == 1


def test_a_value_that_cannot_be_read_leaves_the_notebooks_objects_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    x, file = np.ones((4, 3)), io.BytesIO()
    model.fit(x, x[:, :1], verbose=0)
    Pickler(file).dump_all({"model": model, "late": _Unreadable()})
    before = dict(model.__dict__)
    with pytest.raises(RuntimeError, match="not here"):
        Unpickler(io.BytesIO(file.getvalue()), keeps=True, main={}).load_all()
    assert model.__dict__ == before
    model.fit(x, x[:, :1], verbose=0)


class _Unreadable(keras.layers.Layer):
    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise RuntimeError("not here")


AT_ONCE = """
import pickle, sys, threading
from tfos_magic.cluster.runs.request import RunRequest
from tfos_magic.cluster.runs.results import RunResults
from tfos_magic.cluster.runs.state import RunState
from tfos_magic.transport.messages import RunFinished

parcels, parts = pickle.load(sys.stdin.buffer)
assert "keras" not in sys.modules
told = []

def read():
    results = RunResults(RunState("r", "run 7", "sync", []), RunRequest(""))
    for part in parts:
        results.take(part)
    results.note({0: RunFinished("r", 0, "ok", parcels=parcels)})
    try:
        told.append(type(results.values()["penalised"]).__name__)
    except BaseException as error:
        told.append(f"{type(error).__name__}: {error}")

threads = [threading.Thread(target=read) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(told)
"""


@pytest.mark.soak
def test_models_that_come_at_once_are_read_while_keras_loads(worker: Worker) -> None:
    parcels, buffers, _, _ = worker._packed[kernels_keras()]
    wanted = [parcel for parcel in parcels if "penalised" in parcel["names"]]
    parts = [replace(part, payload=bytes(part.payload)) for part in outputs._parts("r", 0, [*map(memoryview, buffers)])]
    task = pickle.dumps((wanted, parts))
    told = subprocess.run([sys.executable, "-c", AT_ONCE], input=task, capture_output=True, timeout=200)
    assert told.stdout.decode().strip() == str(["Sequential"] * 3), told.stderr.decode()
