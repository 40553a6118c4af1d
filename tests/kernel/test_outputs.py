"""What -o brings back is what a notebook would have kept."""

from __future__ import annotations

import pytest

from tests.kernel.kernel_driver import Kernel

DATA = """
import numpy as np
import keras
rng = np.random.default_rng(3)
x = rng.normal(size=(48, 4)).astype("float32")
y = x.sum(1, keepdims=True)
"""

CUSTOM = """
import keras
import tensorflow as tf

scale = 0.5

class Scaled(keras.layers.Layer):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.calls = tf.Variable(0)
    def call(self, inputs):
        return clipped(inputs) * self.factor * scale

@tf.function
def clipped(inputs):
    if tf.reduce_sum(inputs) > 1e9:
        inputs = inputs * 0
    return inputs

class Net(keras.Model):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = blocks
        self.notes = {"made": [1, 2]}
    def call(self, inputs, training=False):
        for block in self.blocks:
            inputs = block(inputs)
        return inputs
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}

def make():
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(6, "tanh"), Scaled(2.0), keras.layers.Dense(1)]
    net = Net(layers)
    net.compile(keras.optimizers.AdamW(0.01, use_ema=True), "mse")
    return net

net = make()
net.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
dense = net.blocks[0]
"""

AGREES = """
mine = make()
for _ in range(2):
    mine.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
print(max(float(abs(a.numpy() - b.numpy()).max()) for a, b in zip(mine.variables, net.variables)))
"""


def test_a_model_of_classes_that_the_cell_defines_goes_on_in_the_notebook_as_if_trained_on_there(
    kernel: Kernel,
) -> None:
    kernel.run(DATA)
    result = kernel.run("%%tfos_train -n 2 --seed 5 -o net,dense,make\n" + CUSTOM)
    assert not result.error, result.traceback
    assert "note:" not in result.text
    assert kernel.run("print(net.blocks[0] is dense, net.notes, type(net).__name__)").text.split("\n")[0] == (
        "True {'made': [1, 2]} Net"
    )
    assert not kernel.run("net.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)").error
    agreed = kernel.run(AGREES)
    assert not agreed.error, agreed.traceback
    assert float(agreed.text) < 1e-5


@pytest.mark.soak
def test_a_model_made_in_the_notebook_comes_back_trained_into_its_name_with_the_notebooks_own_classes(
    kernel: Kernel,
) -> None:
    kernel.run(CUSTOM.partition("net = make()")[0])
    kernel.run("""
class Seen(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []
    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(logs["loss"])

net, seen = make(), Seen()
""")
    result = kernel.run("""%%tfos_train --seed 5 -o net,seen
net.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=[seen])
""")
    assert not result.error, result.traceback
    checked = kernel.run("""
print(isinstance(net, Net), isinstance(seen, Seen), seen.model is net, len(seen.losses), int(net.optimizer.iterations))
print(Net.call.__globals__ is globals())
""")
    assert checked.text.split("\n")[:2] == ["True True True 2 6", "True"]


def test_an_error_after_training_leaves_the_names_that_there_are_and_comes_first(kernel: Kernel) -> None:
    result = kernel.run("""%%tfos_train -o weights,plot,stream
import tensorflow as tf
import numpy as np
weights = np.arange(3)
stream = (i for i in weights)
tf.function(lambda i: tf.gather(tf.zeros(2), i))(tf.constant(7))
plot = 1
""")
    assert result.error == "WorkerError"
    lines = result.traceback.splitlines()
    assert lines[0].startswith("WorkerError: InvalidArgumentError on worker 0 on ")
    assert "indices = 7 is not in [0, 2)" in lines[0]
    assert "-->   6 tf.function(" in result.traceback
    assert "In the notebook:\nBrought back with -o as they were when it ended: weights." in result.traceback
    assert "plot: the cell did not define it" in result.traceback
    assert "stream: TypeError: cannot pickle 'generator' object" in result.traceback
    assert kernel.run("print(weights)").text.strip() == "[0 1 2]"


@pytest.mark.soak
def test_an_error_on_one_worker_leaves_the_names_of_the_first(kernel: Kernel) -> None:
    """Whether the first worker waits for the other in a step, or computes something else."""
    result = kernel.run("""%%tfos_train -n 2 -o model,losses,note
import keras
import numpy as np
note, words, labels = "begun", np.arange(64).reshape(64, 1) % 10, np.ones((64, 1))
model = keras.Sequential([keras.layers.Embedding(10, 4), keras.layers.Flatten(), keras.layers.Dense(1)])
model.compile("adam", "mse")
losses = model.fit(words, labels, batch_size=32, epochs=2, verbose=0).history["loss"]
words[-1] = 77
model.fit(words, labels, batch_size=32, shuffle=False, verbose=0)
""")
    assert result.traceback.startswith("WorkerError: InvalidArgumentError on worker 1 on ")
    assert "Brought back with -o as they were when it ended: model, losses, note." in result.traceback
    assert "PeerLost" not in result.text
    told = kernel.run(
        "import numpy as np\n"
        "print(len(losses), note, model.optimizer.iterations.numpy() >= 4, model.predict(np.zeros((2, 1))).shape)"
    )
    assert told.text.splitlines()[-1] == "2 begun True (2, 1)"
    result = kernel.run("%%tfos_train -n 2 -o done\nimport time\ndone = 1\nif tfos.rank():\n    1 / 0\ntime.sleep(60)")
    assert "ZeroDivisionError on worker 1" in result.traceback
    assert result.seconds < 30
    assert kernel.run("print(done)").text.strip() == "1"


@pytest.mark.soak
def test_after_an_error_on_one_worker_another_cell_trains_however_late_the_first_ended(kernel: Kernel) -> None:
    result = kernel.run("""%%tfos_train -n 2 -o done
import signal
import time
done = 1
if tfos.rank():
    1 / 0
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # as code that is not in Python for long
time.sleep(4)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
time.sleep(60)
""")
    assert "ZeroDivisionError on worker 1" in result.traceback
    assert "Brought back with -o as they were when it ended: done." in result.traceback
    result = kernel.run("""%%tfos_train -n 2
import signal
import time
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(3)  # the cell has ended, and is asked to end meanwhile
tfos.allreduce(1)
if tfos.rank():
    1 / 0
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
time.sleep(0.5)
slow = Slow()
raise ValueError("as well")
""")
    assert "ValueError on worker 0" in result.traceback
    again = kernel.run("%%tfos_train -n 2 -o total\ntotal = int(tfos.allreduce(1, op='sum'))")
    assert not again.error, again.traceback
    assert kernel.run("print(total)").text.strip() == "2"


def test_a_script_that_leaves_has_ended_well_and_its_folders_stay(kernel: Kernel) -> None:
    result = kernel.run("""%%tfos_train -n 2 -o folder,path
import sys
import tempfile
folder = tempfile.TemporaryDirectory()
path = folder.name + "/note"
open(path, "w").close()
sys.exit(0)
""")
    assert not result.error, result.traceback
    assert kernel.run("import os\nprint(os.path.exists(path))").text.strip() == "True"
    assert "SystemExit on worker" in kernel.run("%%tfos_train -n 2\nimport sys\nsys.exit('bad')").traceback
    assert "KeyboardInterrupt on worker" in kernel.run("%%tfos_train -n 2\nraise KeyboardInterrupt").traceback


@pytest.mark.soak
def test_a_part_of_a_model_of_the_notebook_brings_the_whole_back(kernel: Kernel) -> None:
    assert not kernel.run(
        DATA
        + """
whole, plain = (keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(1)]) for _ in range(2))
plain.set_weights(whole.get_weights())
for each in (whole, plain):
    each.compile("adam", "mse")
    each.fit(x, y, shuffle=False, verbose=0)
"""
    ).error
    told = kernel.run(
        "%%tfos_train -n 2 -o kernel\nwhole.fit(x, y, shuffle=False, verbose=0)\nkernel = whole.layers[0].kernel"
    )
    assert "whole came back too, because what -o names is part of it" in told.text
    assert "was trained here" not in told.text
    near = kernel.run("""
plain.fit(x, y, shuffle=False, verbose=0)
near = [np.abs(a - b).max() < 1e-5 for a, b in zip(whole.get_weights(), plain.get_weights())]
print(all(near), int(whole.optimizer.iterations.numpy()), kernel is whole.layers[0].kernel)
""")
    assert near.text.strip() == "True 4 True"


@pytest.mark.soak
def test_a_run_that_is_stopped_leaves_its_model_as_it_was_then(kernel: Kernel) -> None:
    message_id = kernel.submit("""%%tfos_train -o model
import keras
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, epochs=1_000_000, verbose=0)
""")
    kernel.finish(message_id, until="epoch 2 of")
    kernel.manager.interrupt_kernel()
    result = kernel.finish(message_id, timeout=30)
    assert result.error == "RunInterrupted"
    assert "as they were when it ended: model." in result.traceback
    assert int(kernel.run("print(int(model.optimizer.iterations))").text) > 2


def test_without_tensorflow_in_the_notebook_a_model_comes_as_its_weights_and_a_private_file(kernel: Kernel) -> None:
    kernel.run("""
import sys
hidden = {name: sys.modules[name] for name in list(sys.modules) if name.split(".")[0] in ("tensorflow", "keras")}
for name in hidden:
    sys.modules[name] = None
""")
    result = kernel.run("""%%tfos_train -o model,history,values
import keras
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="last")])
model.compile("sgd", "mse")
history = model.fit(x, y, epochs=1, verbose=0)
values = model(x[:2])
""")
    checked = kernel.run("""
import os, stat
print(sorted(model), type(values).__name__, list(history.history), oct(stat.S_IMODE(os.stat(model.file).st_mode)))
sys.modules.update(hidden)
print(keras.saving.load_model(model.file).layers[0].kernel.numpy().tolist() == model["sequential/last/kernel"].tolist())
""")
    assert not result.error, result.traceback
    assert "Python has no TensorFlow: model came back as its weights" in result.text
    assert not checked.error, checked.traceback
    assert checked.text.splitlines() == [
        "['sequential/last/bias', 'sequential/last/kernel'] ndarray ['loss'] 0o600",
        "True",
    ]


def test_a_list_of_the_notebook_that_a_callback_of_it_fills_comes_back(kernel: Kernel) -> None:
    kernel.run("""
import keras
seen, untouched = [], [1]
class Seeing(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        seen.append(epoch)
""")
    result = kernel.run("""%%tfos_train -o seen,untouched
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(keras.ops.ones((8, 4)), keras.ops.ones((8, 1)), epochs=2, verbose=0, callbacks=[Seeing()])
""")
    assert not result.error, result.traceback
    assert kernel.run("print(seen, untouched)").text.strip() == "[0, 1] [1]"


@pytest.mark.soak
def test_what_names_a_dataframe_finds_it_in_the_notebook_and_lists_in_two_names_stay_one(kernel: Kernel) -> None:
    kernel.run("""
class Trainer:
    def __init__(self):
        self.losses, self.seen = [], {"rows": set()}
trainer = Trainer()
""")
    result = kernel.run("""%%tfos_train -n 2 --label y --batch-size 100 -o model,validating,trainer,curves,first
import keras
class Validating(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.last = self.model.evaluate(train, verbose=0)
        trainer.losses.append(logs["loss"])
    def data(self):
        return train
validating = Validating()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(train, verbose=0, callbacks=[validating])
curves, first = {"train": trainer.losses, "rows": [trainer.seen["rows"]]}, (trainer.losses, 1)
""")
    assert not result.error, result.traceback
    assert "came back without" not in result.text
    checked = kernel.run("""
trainer.losses.append(7.0)
trainer.seen["rows"].add(3)
print(validating.data() is train, validating.model is model, curves["train"][1:], first[0][1:], curves["rows"])
""")
    assert checked.text.strip() == "True True [7.0] [7.0] [{3}]", checked.traceback


@pytest.mark.soak
def test_an_error_over_ragged_rows_names_the_column_and_how_to_pad_it(kernel: Kernel) -> None:
    kernel.run(
        'words = spark.range(20).select(F.expr("sequence(1, id % 3 + 1)").alias("codes"), F.lit(1.0).alias("y"))'
    )
    result = kernel.run("""%%tfos_train -n 2 --label y
import keras
model = keras.Sequential([keras.layers.Embedding(9, 4), keras.layers.LSTM(3), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(words, verbose=0)
""")
    assert result.error == "WorkerError"
    assert "Arrays of column 'codes' differ in length" in result.traceback
    assert "--pad codes=0" in result.traceback
    assert "could not be tried" not in result.text


@pytest.mark.soak
def test_a_functional_model_of_a_class_of_the_notebook_works_there_and_in_the_next_cell(kernel: Kernel) -> None:
    kernel.run("""
import keras, numpy as np
class Base(keras.Model):
    def train_step(self, data):
        self.steps = getattr(self, "steps", 0) + 1
        return super().train_step(data)
class Custom(Base):
    pass
points = np.ones((8, 4), "float32")
""")
    result = kernel.run("""%%tfos_train -n 2 --seed 1 -o custom,expected
inputs = keras.Input((4,))
custom = Custom(inputs, keras.layers.Dense(1)(inputs))
custom.compile("sgd", "mse")
custom.fit(points, points[:, :1], verbose=0)
expected = custom.predict(points, verbose=0)
""")
    assert not result.error, result.traceback
    checked = kernel.run("""
print(type(custom) is Custom, np.abs(custom.predict(points, verbose=0) - expected).max() < 1e-6)
custom.fit(points, points[:, :1], verbose=0)
again = Custom(custom.inputs, custom.outputs)
""")
    assert not checked.error, checked.traceback
    assert checked.text.splitlines()[0] == "True True"  # TensorFlow may warn of how often this kernel has traced
    later = kernel.run("%%tfos_train -n 2 -o later\nlater = custom.predict(points, verbose=0).shape\n")
    assert not later.error, later.traceback


@pytest.mark.soak
def test_names_and_symbolic_tensors_of_keras_are_one_row_in_notebook_and_cells(kernel: Kernel) -> None:
    kernel.run("""
import keras, numpy as np
inputs = keras.Input((4,))
code = keras.layers.Dense(3)(inputs)
base = keras.Model(inputs, keras.layers.Dense(1, activity_regularizer="l2")(code))
base.compile("sgd", "mse")
points = np.ones((8, 4), "float32")
base.fit(points, points[:, :1], verbose=0)
number = lambda layer: int(layer.name.rpartition("_")[2])
""")
    result = kernel.run("""%%tfos_train -n 2 -o base,headed
headed = keras.Model(base.inputs, keras.layers.Dense(2)(base.layers[-2].output))
base.fit(points, points[:, :1], verbose=0)
""")
    assert not result.error, result.traceback
    saved = kernel.run("encoder, late = keras.Model(inputs, code), keras.layers.Dense(1)\nheaded.save('headed.keras')")
    assert not saved.error, saved.traceback
    checked = kernel.run("""
print(base.input is inputs, encoder.layers[1] is headed.layers[1], number(late) - number(headed.layers[-1]))
""")
    assert not checked.error, checked.traceback
    assert checked.text.strip() == "True True 1"


@pytest.mark.soak
def test_a_model_of_the_notebook_that_is_trained_and_not_asked_back_is_told_of(kernel: Kernel) -> None:
    assert not kernel.run("""import keras, numpy as np
points = np.ones((8, 2))
ours, other = (keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]) for _ in range(2))
for each in (ours, other):
    each.compile("sgd", "mse")
""").error
    cell = "ours.fit(points, points[:, :1], verbose=0)\nother.evaluate(points, points[:, :1], verbose=0)\n"
    told = kernel.run(f"%%tfos_train -n 2\n{cell}").text
    assert "ours came from the notebook and was trained here, but is not named in -o" in told
    assert "was trained here" not in kernel.run(f"%%tfos_train -n 2 -o ours\n{cell}").text
