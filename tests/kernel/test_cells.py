"""Cells as people write them: names in, names out, errors, and many of them one after another."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from tests.kernel.kernel_driver import Kernel, command_of, train_cell
from tests.soak import every

CENSUS = """
import os, threading
runtime = get_ipython().magics_manager.registry["TFOSMagics"].runtime
me = {"threads": threading.active_count(), "files": len(os.listdir("/proc/self/fd"))}
pids = [p for w in runtime.cluster.workers for p in (w.pid, w.agent.pid)]
spool = [w.beat.spool_bytes for w in runtime.cluster.workers]
print((me, pids, spool))
"""


def _census(kernel: Kernel) -> dict[str, int]:
    me, pids, spool = ast.literal_eval(kernel.run(CENSUS).text)
    processes = [psutil.Process(pid) for pid in pids]
    return {
        "processes": len(kernel.processes()),
        "kernel threads": me["threads"],
        "kernel files": me["files"],
        "worker threads": sum(process.num_threads() for process in processes),
        "worker files": _steady(lambda: sum(process.num_fds() for process in processes)),
        "worker memory MB": sum(process.memory_info().rss for process in processes) // 1_000_000,
        "spool bytes": sum(spool),
    }


def _steady(count: Callable[[], int]) -> int:
    """The fewest in two seconds: what a heartbeat or the end of a stream opens for a moment is not counted."""
    counts = []
    for _ in range(10):
        counts.append(count())
        time.sleep(0.2)
    return min(counts)


@pytest.mark.timeout(400)
@pytest.mark.soak
def test_twenty_cells_on_one_cluster_cost_no_more_than_the_first_ones(kernel: Kernel) -> None:
    for _ in range(3):
        first = kernel.run(train_cell("--label y -o history"))
        assert not first.error, first.traceback
    before = _census(kernel)
    for _ in range(20):
        assert not kernel.run(train_cell("--label y -o history")).error
    after = _census(kernel)
    assert after["spool bytes"] == before["spool bytes"] > 0
    for name in ("processes", "kernel threads", "kernel files", "worker threads", "worker files"):
        assert after[name] <= before[name] + 2, f"{name} grew from {before[name]} to {after[name]}"
    assert after["worker memory MB"] < before["worker memory MB"] + 150


def test_values_functions_and_modules_of_the_notebook_reach_the_cell(kernel: Kernel) -> None:
    kernel.run("""
import math, numpy as np
units, offset = 3, np.arange(4.0)
def build(n):
    import keras
    return keras.Sequential([keras.Input((n,)), keras.layers.Dense(units)])
""")
    result = kernel.run("""%%tfos_train -o shape,total,where
shape = build(4).output_shape
total = float(np.sum(offset)) + math.floor(0.5)
where = __name__
print("seen by", units)
""")
    assert not result.error, result.traceback
    assert "seen by 3" in result.text
    assert kernel.run("print(shape, total, where)").text.strip() == "(None, 3) 6.0 __main__"


def test_a_module_beside_the_notebook_is_in_the_cell_as_the_notebook_has_set_it(kernel: Kernel) -> None:
    (kernel.folder / "beside_nb.py").write_text("LR, NAMES = .5, []\ndef rate():\n    return LR\n")
    kernel.run("""
import beside_nb
beside_nb.LR = .02
beside_nb.NAMES.append("a")
def through():
    import beside_nb as again
    return again.rate()
""")
    cell = """%%tfos_train -o seen,all_see
{imported}
seen = [{module}.LR, {module}.rate(), {module}.NAMES, through()]
all_see = tfos.allreduce({module}.LR, op="sum").numpy().tolist()
{module}.LR = 7
"""
    cells = [("import beside_nb as mine", "mine"), ("", "beside_nb")]
    for imported, module in cells:
        result = kernel.run(cell.format(imported=imported, module=module))
        assert not result.error, result.traceback
        assert (
            kernel.run("print(seen, round(all_see, 3), beside_nb.LR)").text == "[0.02, 0.02, ['a'], 0.02] 0.04 0.02\n"
        )
    kernel.run("import importlib; importlib.reload(beside_nb)")
    (kernel.folder / "beside_nb.py").write_text("LR, NAMES = .125, []\ndef rate():\n    return LR\n")
    kernel.run(cell.format(imported="", module="beside_nb"))
    assert kernel.run("print(seen)").text == "[0.125, 0.125, [], 0.125]\n"


def test_autograph_converts_functions_of_the_notebook_and_tracebacks_show_their_lines(kernel: Kernel) -> None:
    kernel.run("""
def halved_if_even(x):
    if x % 2 == 0:
        x = x // 2
    return x
def fail():
    raise ValueError("on purpose")
""")
    result = kernel.run("""%%tfos_train -o values
import tensorflow as tf
values = list(tf.data.Dataset.range(6).map(halved_if_even).as_numpy_iterator())
""")
    assert not result.error, result.traceback
    assert "AutoGraph" not in result.text
    assert kernel.run("print([int(value) for value in values])").text.strip() == "[0, 1, 1, 3, 2, 5]"
    failed = kernel.run("%%tfos_train\nfail()\n")
    assert 'raise ValueError("on purpose")' in failed.traceback
    assert "-->   2 fail()" in failed.traceback


EARLIER = """
import os, tempfile
import keras, numpy as np, tensorflow as tf
from IPython import display
from typing import Tuple
keras.utils.set_random_seed(2)
inputs = np.random.RandomState(0).normal(size=(32, 4)); outputs = inputs[:, :1]
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    net.compile(keras.optimizers.SGD(0.1), "mse")
kept = tf.train.Checkpoint(net=net, optimizer=net.optimizer)
manager = tf.train.CheckpointManager(kept, tempfile.mkdtemp(), max_to_keep=2)
shown = keras.src.legacy.preprocessing.image.ImageDataGenerator(rescale=0.5).flow(
    np.ones((8, 2, 2, 1), "float32"), np.arange(8.0), batch_size=4, shuffle=False)

def total(x, n: int) -> Tuple[tf.Tensor, tf.Tensor]:
    s = tf.constant(0.0)
    for t in tf.range(n):
        s = s + tf.reduce_sum(x)
    return s, s

@tf.function
def step(x, n):
    return total(x, n)[0]

def train_all(epochs):
    with strategy.scope():
        net.fit(inputs, outputs, epochs=epochs, batch_size=16, verbose=0, shuffle=False)
    manager.save()
    display.clear_output(wait=True)
    display.display(display.HTML("<b>trained</b>"))
    return int(kept.save_counter), len(manager.checkpoints)
"""
LATER = """%%tfos_train -o net,counts,summed,images
counts = train_all(3)
summed = float(step(tf.constant([1.0, 2.0]), 3))
images = [float(batch.mean()) for batch, _ in (shown[0], shown[1])]
"""
BY_HAND = """
weights = net.get_weights()
again = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
again.compile(keras.optimizers.SGD(0.1), "mse")
again.set_weights(begin)
again.fit(inputs, outputs, epochs=3, batch_size=16, verbose=0, shuffle=False)
print(counts, summed, images, max(float(np.abs(a - b).max()) for a, b in zip(weights, again.get_weights())) < 1e-6)
"""


@pytest.mark.soak
def test_what_tutorials_make_in_cells_before_travels(kernel: Kernel) -> None:
    assert not kernel.run(EARLIER + "begin = net.get_weights()").error
    result = kernel.run(LATER)
    assert not result.error, result.traceback
    assert "HTML object" in result.text  # shown, as a front end of text does it
    assert "\x1b[2K" not in result.text
    assert kernel.run(BY_HAND).text.strip() == "(1, 1) 9.0 [0.5, 0.5] True"


def test_an_object_that_cannot_travel_is_named_with_the_function_that_reads_it(kernel: Kernel) -> None:
    assert not kernel.run("""
import tempfile, tensorflow as tf
writer = tf.summary.create_file_writer(tempfile.mkdtemp())
def log(step):
    with writer.as_default():
        tf.summary.scalar("step", step, step)
""").error
    result = kernel.run("%%tfos_train\nlog(3)")
    assert "The name 'log', which reads 'writer', cannot be sent" in result.traceback


def test_keras_settings_go_on_from_the_kernel_into_a_cell_and_back(kernel: Kernel) -> None:
    seen = """%%tfos_train -o seen
import keras
config = keras.config
seen = [config.floatx(), config.dtype_policy().name, config.epsilon(), config.image_data_format()]
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
seen.append(model.layers[0].kernel.dtype)
"""
    change = """
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")
keras.config.set_epsilon(1e-5)
keras.config.set_image_data_format("channels_first")
"""
    changed = "['float64', 'float64', 1e-05, 'channels_first', 'float64']"
    usual = """
keras.config.set_floatx("float32")
keras.config.set_dtype_policy("float32")
keras.config.set_epsilon(1e-7)
keras.config.set_image_data_format("channels_last")
"""
    shown = "print([keras.config.floatx(), keras.config.dtype_policy().name, keras.layers.Dense(1).dtype])"
    try:
        # Layers follow floatx until a policy was set, or asked for, which the first layer does.
        kernel.run("import keras\nkeras.backend.clear_session()")
        kernel.run("%%tfos_train\nimport keras\nkeras.config.set_floatx('float64')\n")
        kernel.run(seen)
        assert kernel.run("print(seen)").text.strip() == "['float64', 'float64', 1e-07, 'channels_last', 'float64']"
        kernel.run("import keras\n" + usual)
        kernel.run("%%tfos_train\nimport keras\nkeras.layers.Dense(1)\nkeras.config.set_floatx('float64')")
        assert kernel.run(shown).text.strip() == "['float64', 'float32', 'float32']"
        assert not kernel.run("%%tfos_train\nimport keras\n" + change).error
        assert kernel.run(shown).text.strip() == "['float64', 'float64', 'float64']"
        kernel.run(seen)
        assert kernel.run("print(seen)").text.strip() == changed
    finally:
        kernel.run("import keras\n" + usual)


@pytest.mark.soak
def test_other_settings_go_on_from_the_kernel_into_a_cell_and_back(kernel: Kernel, tmp_path: Path) -> None:
    train = """
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=[keras.metrics.MeanAbsoluteError()])
losses = model.fit(np.ones((12, 2)), np.ones(12), batch_size=4, epochs=4, verbose=0).history["loss"]
caught = ""
try:
    np.log(np.zeros(1))
except FloatingPointError:
    caught = "infinite"
warnings.warn("of no interest")
seen = [len(losses), str(np.array([1 / 3])), caught, tf.config.functions_run_eagerly()]
"""
    libraries = "import os, warnings\nimport keras, numpy as np, tensorflow as tf\n"
    change = """
keras.config.set_max_epochs({epochs})
np.set_printoptions(precision={digits})
np.seterr(all="{errors}")
warnings.{warnings}
tf.config.run_functions_eagerly({eagerly})
"""
    changed = change.format(epochs=2, digits=3, errors="raise", warnings="simplefilter('ignore')", eagerly=True)
    usual = change.format(epochs=None, digits=8, errors="warn", warnings="simplefilter('default')", eagerly=False)
    shown = "['2', '[0.333]', 'infinite', 'True']"
    begun = kernel.run("import os; print(os.getcwd())").text.strip()
    try:
        for setting in (libraries + changed, f"%%tfos_train -n 2\n{libraries}{changed}os.chdir({str(tmp_path)!r})\n"):
            assert not kernel.run(libraries + usual).error
            assert not kernel.run(setting).error
            there = kernel.run("%%tfos_train -n 2 -o seen\n" + libraries + train)
            assert not there.error, there.traceback
            assert "of no interest" not in there.text
            assert "The steps run eagerly" in there.text
            assert kernel.run("print(list(map(str, seen)))").text.strip() == shown
            here = kernel.run(libraries + train + "print(list(map(str, seen)), os.getcwd())")
            assert "of no interest" not in here.text
            assert shown in here.text
        assert str(tmp_path) in here.text
    finally:
        kernel.run(f"{libraries}{usual}os.chdir({begun!r}); warnings.simplefilter('ignore', ResourceWarning)")


def test_columns_of_every_kind_come_as_the_options_say_and_the_status_shows_them(kernel: Kernel) -> None:
    kernel.run("""odd = spark.range(12).selectExpr(
    "id", "array_repeat(id, int(id % 3)) bag", "nullif(id, 5) n", "named_struct('day', date'1970-01-03') at")""")
    options = "--label id --pad bag=-1 --fill n=7 --null-mask n"
    assert "bag int64 (rows, ?)" in kernel.run(f"%%tfos_train {options} --dry-run\nodd").text
    result = kernel.run(f"""%%tfos_train {options} -o shapes,filled,day
import numpy as np
rows = [features for features, _ in odd.as_numpy_iterator()]
shapes = {{name: spec.shape[1:].as_list() for name, spec in odd.element_spec[0].items() if name != "at"}}
filled = [int(n) for part in rows for n, there in zip(part["n"], part["n_mask"]) if not there]
filled = int(np.sum(tfos.allgather(np.array([sum(filled)], "int64"))))
day = int(rows[0]["at"]["day"][0])
""")
    assert not result.error, result.traceback
    assert kernel.run("print(shapes, filled, day)").text.strip() == "{'bag': [2], 'n': [], 'n_mask': []} 7 2"
    shown = kernel.run("%tfos status").text
    for line in (
        "DataFrame odd: 12 rows",
        "bag int64 (rows, 2)",
        "n_mask bool (rows,)",
        "at {day int64 (rows,) days since",
    ):
        assert line in shown
    refused = kernel.run("%%tfos_train --label id --pad bag=-1\nfor _ in odd: pass")
    assert "column 'n' has nulls" in refused.traceback
    assert "--fill n=VALUE" in refused.traceback


def test_files_are_read_in_the_workers_where_the_notebook_has_them(kernel: Kernel) -> None:
    kernel.run("spark.range(0, 50, 1, 4).write.mode('overwrite').parquet('numbers')")
    result = kernel.run("""%%tfos_train -o where,steps,total
import os
import numpy as np
here = os.getcwd()
os.chdir("/")
where = tfos.absolute_path("numbers")
batches = [batch["id"] for batch in tfos.dataset("numbers", batch_size=8).as_numpy_iterator()]
steps, own = len(batches), np.concatenate(batches)
total = tfos.allreduce(np.array([len(own), own.sum()], "int64"), "sum").numpy().tolist()
os.chdir(here)
""")
    assert not result.error, result.traceback
    assert kernel.run("print(steps, total)").text.strip() == "7 [50, 1225]"
    assert kernel.run("import tfos_magic as t; print(where == t.absolute_path('numbers'), where)").text.split() == [
        "True",
        str(kernel.folder / "numbers"),
    ]


def test_scalars_of_every_epoch_are_in_the_log_directory(kernel: Kernel) -> None:
    result = kernel.run(train_cell("--label y -o history --log-dir scalars", epochs=4))
    assert not result.error, result.traceback
    expected = ast.literal_eval(kernel.run("print(history.history['loss'])").text)
    (folder,) = (kernel.folder / "scalars").iterdir()
    events = EventAccumulator(str(folder / "train")).Reload().Tensors("epoch_loss")
    assert [event.step for event in events] == [0, 1, 2, 3]
    assert [make_ndarray(event.tensor_proto).item() for event in events] == pytest.approx(expected)


@pytest.mark.soak
def test_a_cells_own_tensorboard_callback_is_shown_without_any_log_directory(kernel: Kernel) -> None:
    source = train_cell("--label y -o history", epochs=2)
    callback = "epochs=2, callbacks=[keras.callbacks.TensorBoard('own/fit', write_graph=False)]"
    for _ in range(2):
        result = kernel.run(source.replace("epochs=2", callback))
        assert not result.error, result.traceback
    assert "%tfos tensorboard shows what the cell writes" in result.text
    expected = ast.literal_eval(kernel.run("print(history.history['loss'])").text)
    shown = kernel.run("%tfos tensorboard --link").text
    (base,) = re.findall(r"TensorBoard of (\S+): http", shown)
    first, second = sorted(Path(base).iterdir())
    assert second.name.endswith("-run-" + str(int(first.name.rpartition("-")[2]) + 1))
    events = EventAccumulator(str(second / "own" / "fit" / "train")).Reload().Tensors("epoch_loss")
    assert [make_ndarray(event.tensor_proto).item() for event in events] == pytest.approx(expected)
    assert not kernel.run("%tfos tensorboard --stop").error


def test_a_tensorboard_that_cannot_start_is_told_and_the_run_goes_on(kernel: Kernel) -> None:
    broken = kernel.folder / "broken" / "tensorboard"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no TensorBoard here')")
    kernel.run(f"import os\nos.environ['PYTHONPATH'] = {str(broken.parent)!r}")
    result = kernel.run(train_cell("--label y -o history --tensorboard"))
    kernel.run("del os.environ['PYTHONPATH']")
    assert not result.error, result.traceback
    assert "no TensorBoard here" in result.text
    assert kernel.run("print(len(history.history['loss']))").text.strip() == "2"


def test_an_error_on_every_worker_is_told_once_in_the_cells_own_lines(kernel: Kernel) -> None:
    result = kernel.run("%%tfos_train\nvalues = [1, 2]\nprint('about to fail')\nvalues[5]\n")
    assert result.error == "WorkerError"
    assert "IndexError on worker 0" in result.traceback
    assert "-->   4 values[5]" in result.traceback
    assert "about to fail" in result.traceback
    assert "tfos_magic/" not in result.traceback
    assert not kernel.run(train_cell()).error


def test_an_error_on_one_worker_ends_the_others_and_the_next_cell_trains(kernel: Kernel) -> None:
    source = (
        train_cell(epochs=100_000)
        .replace(
            "history = ",
            """
import os, keras
class Trip(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if tfos.rank() == 1:
            raise RuntimeError("only here")
history = """,
        )
        .replace("epochs=100000", "epochs=100000, callbacks=[Trip()]")
    )
    result = kernel.run(source)
    assert result.error == "WorkerError"
    assert "RuntimeError on worker 1" in result.traceback
    assert "only here" in result.traceback
    again = kernel.run(train_cell())
    assert not again.error, again.traceback


@pytest.mark.soak
def test_a_trainer_that_is_killed_costs_one_run_and_not_the_cluster(kernel: Kernel) -> None:
    message_id = kernel.submit(train_cell("--label y --max-restarts 0", epochs=100_000))
    kernel.finish(message_id, until="epoch 2 of")
    trainers = [p for p in kernel.processes() if command_of(p).startswith("tfos-trainer")]
    trainers[-1].kill()
    result = kernel.finish(message_id, timeout=30)
    assert result.error == "WorkerLost"
    assert "SIGKILL" in result.traceback
    again = kernel.run(train_cell())
    assert not again.error, again.traceback


BAD_CELLS = {
    "unknown column": ("--features nope --label y", "train", "DataError", "'nope'"),
    "label missing": ("--label target", "train", "DataError", "target"),
    "null in a numeric column": ("--label y", "with_null", "DataError", "null"),
    "arrays longer than they are padded to": ("--label y --pad 0:1", "ragged", "DataError", "--pad makes them 1"),
    "empty DataFrame": ("--label y", "empty", "DataError", "no rows"),
    "a name that cannot be pickled": ("", "endless", "CaptureError", "'endless'"),
    "the session itself": ("", "spark", "CaptureError", "SparkSession"),
    "a name that does not exist": ("", "trian", "CaptureError", "'train'"),
    "a syntax error": ("", "train]", "UsageError", "not valid Python"),
    "a line magic in the cell": ("", "train)\n%time 1\n(1", "UsageError", "is the magic %time"),
    "more workers than there is room for": ("-n 8 --label y", "train", "StartTimeout", "ask for fewer workers"),
    "an unknown option": ("--lable y", "train", "UsageError", "--label"),
    "an option without its value": ("--label", "train", "UsageError", "--label"),
    "a feed that is no DataFrame": ("--feed a=offsets", "train", "UsageError", "offsets"),
}


@pytest.mark.parametrize("case", every(2, BAD_CELLS))
def test_bad_input_is_told_before_anything_trains(kernel: Kernel, case: str) -> None:
    options, name, kind, word = BAD_CELLS[case]
    kernel.run("""
import threading
endless, offsets = (number for number in range(3)), [1, 2]
with_null = train.withColumn("z", F.when(F.col("y") == 0, F.lit(1.0)))
ragged = train.withColumn("x", F.when(F.col("y") == 0, F.array(F.lit(1.0))).otherwise(F.array(F.lit(1.0), F.lit(2.0))))
empty = train.where("y > 5")
""")
    assert not kernel.run("%tfos start").error
    result = kernel.run(f"%%tfos_train {options}\nprint('it trains', {name})\n")
    assert result.error == kind, result.traceback
    assert word in result.traceback
    assert "it trains" not in result.text
    assert "Py4J" not in result.traceback
    assert "java" not in result.traceback


def test_after_all_these_refusals_the_cluster_still_trains(kernel: Kernel) -> None:
    result = kernel.run(train_cell())
    assert not result.error, result.traceback


@pytest.mark.soak
def test_the_cluster_gets_the_size_that_a_cell_asks_for_when_the_run_before_has_ended(kernel: Kernel) -> None:
    assert not kernel.run(train_cell("--label y --detach first", epochs=3)).error
    result = kernel.run("%%tfos_train -n 3 -o many\nmany = tfos.size()")
    assert not result.error, result.traceback
    assert kernel.run("print(many, first.phase.value)").text.strip() == "3 done"
    assert not kernel.run("%%tfos_train -o many\nmany = tfos.size()").error
    assert kernel.run("print(many)").text.strip() == "3"
    assert not kernel.run("%tfos start -n 2").error
    assert not kernel.run(train_cell()).error
    assert not kernel.run(train_cell("--label y --detach", epochs=100_000)).error
    busy = kernel.run("%tfos start -n 3")
    assert busy.error == "ClusterError"
    assert "is busy with a run, and cannot be resized" in busy.traceback
    assert not kernel.run("run.stop()").error


def test_more_workers_than_slots_says_what_is_missing(kernel: Kernel) -> None:
    kernel.run("%tfos stop")
    result = kernel.run("%tfos start -n 9")
    assert result.error == "StartTimeout"
    assert "9 workers and 1 feed slot asked, 4 of 10 slots free" in result.traceback
    assert result.seconds < 20


def test_help_is_printed_and_nothing_starts(kernel: Kernel) -> None:
    for source in (
        "%%tfos_train --help\npass",
        "%%tfos_train -n 2 --help",
        "%tfos_train --help",
        "%tfos start --help",
        "%tfos",
    ):
        result = kernel.run(source)
        assert not result.error
        assert "--" in result.text
        assert not result.text.startswith("::")
    assert "phase" in kernel.run("%tfos status --json").text
    assert (
        "batch-size" in kernel.client.inspect("%%tfos_train", reply=True, timeout=10)["content"]["data"]["text/plain"]
    )


@pytest.mark.soak
def test_what_the_notebook_sets_in_modules_elsewhere_is_set_on_workers_or_named(kernel: Kernel, tmp_path: Path) -> None:
    text = "class Net:\n    units = 4\nclass Config: pass\nconfig, loss = Config(), None\nconfig.rate = .5\n"
    (tmp_path / "elsewhere_nb.py").write_text(text)
    kernel.run(f"import sys; sys.path.append({str(tmp_path)!r}); import elsewhere_nb")
    cell = """%%tfos_train -n 2 -o seen
import elsewhere_nb
seen = float(tfos.allreduce(elsewhere_nb.Net.units * elsewhere_nb.config.rate, op="sum")), elsewhere_nb.loss
"""
    for value in (8, 4, 6):
        kernel.run(f"elsewhere_nb.Net.units, elsewhere_nb.config.rate = {value}, {value} / 4")
        result = kernel.run(cell)
        assert not result.error, result.traceback
        assert "not sent to workers" not in result.text
        assert kernel.run("print(seen)").text == f"({value * value / 2}, None)\n"
    kernel.run("elsewhere_nb.loss = lambda: 3")
    result = kernel.run(cell)
    assert "elsewhere_nb.loss: set after the import, and not sent to workers" in result.text
    kernel.run("del sys.modules['elsewhere_nb'], elsewhere_nb; sys.path.pop()")


@pytest.mark.soak
def test_a_cell_works_in_the_notebooks_directory_with_its_modules_as_they_are_now(kernel: Kernel) -> None:
    kernel.run("""
import os, pathlib
os.makedirs("deeper", exist_ok=True)
os.chdir("deeper")
pathlib.Path("mylib.py").write_text("class Rate:\\n    value = 1\\n")
import mylib
mine = mylib.Rate()
""")
    cell = """%%tfos_train -n 2 -o rate,path,same,told
import tempfile
from mylib import Rate
rate, same = Rate.value, isinstance(mine, Rate) and isinstance(mine, mylib.Rate)
with open("left.txt", "w") as file:
    file.write(f"rate {rate}")
path = tempfile.mkdtemp() + "/note.txt"
with open(path, "w") as file:
    file.write(f"rank {tfos.rank()}")
told = sorted({"a", "b"}) == ["a", "b"]
"""
    try:
        first = kernel.run(cell)
        assert not first.error, first.traceback
        look = "print(rate, same, os.listdir(), open('left.txt').read(), open(path).read())"
        assert kernel.run(look).text.startswith("1 True")
        kernel.run("pathlib.Path('mylib.py').write_text('class Rate:\\n    value = 20\\n')")
        second = kernel.run(cell)
        assert not second.error, second.traceback
        assert kernel.run("print(open('left.txt').read(), open(path).read())").text.strip() == "rate 20 rank 0"
        assert kernel.run("print(sorted(os.listdir()))").text.strip() in (
            "['left.txt', 'mylib.py']",
            "['__pycache__', 'left.txt', 'mylib.py']",
        )
        kept = kernel.run("print(path)").text.strip()
        assert Path(kept).exists()
    finally:
        kernel.run("os.chdir('..')")


HELPERS = """
import keras, numpy as np
rate, ends, units, told = 0.5, 0, 1, []
x = np.ones((8, 2), "float32")
def build():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])
    model.compile(keras.optimizers.SGD(rate), loss)
    return model
def loss(y, out):
    return weight * keras.ops.mean((y - out) ** 2, -1)
def count(epoch, logs):
    global ends
    ends += 1
"""


def test_functions_of_earlier_cells_and_the_cell_share_their_names_both_ways(kernel: Kernel) -> None:
    assert not kernel.run(HELPERS).error
    result = kernel.run("""%%tfos_train -o ends,seen,final
rate, weight, seen = 0.03, 2.0, []
for units in (2, 3):
    model = build()
    model.fit(x, x[:, :1], epochs=2, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=count)])
    seen.append((model.count_params(), round(float(model.optimizer.learning_rate), 4), ends))
told.append("here")
def final():
    return units, weight, rate, told
""")
    assert not result.error, result.traceback
    assert kernel.run("print(ends, seen)").text.strip() == "4 [(6, 0.03, 2), (9, 0.03, 4)]"
    assert kernel.run("print(final())\nrate = 1.0\nprint(final())").text.split("\n")[:2] == [
        "(3, 2.0, 0.03, ['here'])",
        "(3, 2.0, 1.0, ['here'])",
    ]


def test_a_cell_has_the_notebooks_environment_loggers_and_custom_objects_and_shows_its_last_value(
    kernel: Kernel,
) -> None:
    kernel.run("""
import logging, os, sys
import keras, numpy as np
os.environ["RATE"] = "0.25"
logging.basicConfig(level=logging.INFO, format="%(levelname)s of the notebook: %(message)s", stream=sys.stdout)
@keras.saving.register_keras_serializable(package="mine")
class Scaled(keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs
keras.utils.get_custom_objects()["halved"] = lambda x: x / 2
keras.Sequential([keras.Input((4,)), Scaled()]).save("scaled.keras")
""")
    result = kernel.run("""%%tfos_train -n 2 -o loaded,halved
import os, logging
import keras
rate = os.environ["RATE"]
os.environ["SEEN"] = "in the cell"
logging.getLogger("mine").info("it begins")
loaded = keras.models.load_model("scaled.keras")
halved = keras.saving.get_registered_object("halved")(3.0)
float(rate) * 4
""")
    assert not result.error, result.traceback
    assert "INFO of the notebook: it begins" in result.text
    assert result.text.count("it begins") == 1
    assert "\n1.0\n" in result.text
    kernel.run("logging.root.handlers = []")
    checked = kernel.run('print(os.environ.pop("SEEN"), halved, loaded.predict(np.ones((1, 4)), verbose=0)[0, 0])')
    assert checked.text.strip() == "in the cell 1.5 2.0", checked.traceback
    assert kernel.run("%%tfos_train -n 2 -o seen\nimport os\nseen = 'SEEN' in os.environ").error == ""
    assert kernel.run("print(seen)").text.strip() == "False"


SESSION = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[3]").config("spark.ui.showConsoleProgress", "true").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
rows = spark.range(40).selectExpr("cast(id as float) as x", "cast(id as float) as y")
"""


@pytest.mark.soak
def test_a_session_of_ones_own_keeps_its_progress_bar_out_of_cells_and_its_frames_end_with_it(kernel: Kernel) -> None:
    cell = "%%tfos_train -n 1 --label y\nlen(list(rows))\n"
    kernel.run("%tfos stop\nspark.stop()")
    assert not kernel.run(SESSION).error
    first = kernel.run(cell)
    assert not first.error, first.traceback
    assert "Spark's progress bar is off in this session" in first.text
    slow = kernel.run("spark.range(2, numPartitions=2).rdd.map(lambda row: __import__('time').sleep(2)).collect()")
    assert "[Stage" not in slow.text
    scaled = kernel.run("%tfos scale 2")
    assert "2 workers" in scaled.text, scaled.traceback
    assert "progress bar" not in scaled.text
    kernel.run("%tfos stop\nspark.stop()")
    assert not kernel.run(SESSION.replace("rows", "others")).error
    late = kernel.run(cell)
    assert "DataFrame 'rows' belongs to a stopped Spark session: create it again" in late.traceback


def test_options_that_the_running_cluster_ignores_are_said_with_the_remedy(kernel: Kernel) -> None:
    assert not kernel.run("%tfos start -n 2").error
    told = kernel.run(train_cell("--label y --cores 2 --spool-gb 1", epochs=1))
    assert not told.error, told.traceback
    said = (
        "The running cluster ignores --cores 2 (it has 1), --spool-gb 1 (it has half of the free disk). "
        "Such options apply when a cluster starts: `%tfos stop`, then run the cell again."
    )
    assert said in told.text.replace("\n", " ")
    quiet = kernel.run(train_cell("--label y --cores 1", epochs=1))
    assert not quiet.error, quiet.traceback
    assert "ignores" not in quiet.text
