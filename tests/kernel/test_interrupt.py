"""Kernel ▸ Interrupt ends the run and nothing else."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.kernel.kernel_driver import DAWDLE, CellResult, Kernel, train_cell
from tests.soak import every

STOP_SECONDS = 2.0

ENDLESS_PYTHON = """%%tfos_train
import time
print("in the loop")
while True:
    time.sleep(0.01)
"""


def _interrupt_after(kernel: Kernel, source: str, text: str) -> CellResult:
    """Run a cell, interrupt it when it has printed ``text``, and give its end, timed from the interrupt."""
    message_id = kernel.submit(source)
    begun = kernel.finish(message_id, until=text)
    assert text in begun.text, begun.traceback
    interrupted = time.monotonic()
    os.kill(kernel.pid, signal.SIGINT)
    result = kernel.finish(message_id)
    result.seconds = time.monotonic() - interrupted
    return result


def _trains_again(kernel: Kernel) -> None:
    again = kernel.run(train_cell("--label y -o history"))
    assert not again.error, again.traceback
    assert kernel.run("print(len(history.history['loss']))").text.strip() == "2"


def _trainer_pids(kernel: Kernel) -> list[int]:
    status = json.loads(kernel.run("%tfos status --json").text)
    return [worker["pid"] for worker in status["workers"]]


def test_an_interrupt_stops_training_within_two_seconds_and_the_trainers_live_on(kernel: Kernel) -> None:
    _trains_again(kernel)
    pids = kernel.run(
        "print([w.pid for w in get_ipython().magics_manager.registry['TFOSMagics'].runtime.cluster.workers])"
    )
    result = _interrupt_after(kernel, train_cell(epochs=100_000), "epoch 3 of")
    assert result.error == "RunInterrupted"
    assert result.seconds < STOP_SECONDS
    _trains_again(kernel)
    now = kernel.run(
        "print([w.pid for w in get_ipython().magics_manager.registry['TFOSMagics'].runtime.cluster.workers])"
    )
    assert now.text == pids.text


@pytest.mark.soak
def test_an_interrupt_ends_a_cell_that_never_reaches_a_training_step(kernel: Kernel) -> None:
    result = _interrupt_after(kernel, ENDLESS_PYTHON, "in the loop")
    assert result.error == "RunInterrupted"
    assert result.seconds < STOP_SECONDS
    _trains_again(kernel)


AFTER_FIT = [
    "time.sleep(60)",
    "while True: time.sleep(0.01)",
    "subprocess.run(['sleep', '60'])",
    "while True: model.predict(np.ones((20_000, *model.input_shape[1:])), verbose=0)",
    "import keras\nwhile True: keras.layers.Normalization().adapt(np.ones((2000, 6)))",
    "while True: model.predict(np.ones((3, *model.input_shape[1:])), verbose=0)",
]


@pytest.mark.soak
@pytest.mark.parametrize("rest", every(6, AFTER_FIT))
def test_an_interrupt_after_a_fit_ends_the_cell_and_names_come_back(kernel: Kernel, rest: str) -> None:
    kernel.run("history = rest = None")
    source = (
        train_cell("--label y -o history,rest")
        + f"\nimport subprocess, time\nimport numpy as np\nprint('fitted')\nrest = 1\n{rest}\n"
    )
    result = _interrupt_after(kernel, source, "fitted")
    assert result.error == "RunInterrupted", result.traceback
    assert result.seconds < STOP_SECONDS
    assert kernel.run("print(len(history.history['loss']), rest)").text.strip() == "2 1"
    _trains_again(kernel)


OWN_LOOP = """%%tfos_train --label y --batch-size 8 -o model,begun,ended
import time
import keras, tensorflow as tf

model = keras.Sequential([keras.layers.Dense(1)])
optimizer, loss = keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError()
begun = ended = 0
for epoch in range(1000):
    for x, y in train:
        begun += 1
        with tf.GradientTape() as tape:
            value = loss(y, model(x))
        optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_weights), model.trainable_weights))
        print("step")
        time.sleep(1.5)
        ended += 1
        {then}
{after}
"""


@pytest.mark.soak
def test_an_interrupt_ends_a_loop_of_the_cells_own_in_a_step_of_all_workers(kernel: Kernel) -> None:
    result = _interrupt_after(kernel, OWN_LOOP.format(then="", after=""), "step")
    assert result.error == "RunInterrupted", result.traceback
    assert kernel.run("print(begun - ended, ended > 0)").text.strip() == "1 True"  # in the step after the one it met
    _trains_again(kernel)


@pytest.mark.soak
def test_an_interrupt_ends_what_comes_after_a_loop_that_was_broken_off(kernel: Kernel) -> None:
    source = OWN_LOOP.format(then="break", after="    print('over')\n    time.sleep(100)")
    result = _interrupt_after(kernel, source, "over")
    assert result.error == "RunInterrupted", result.traceback
    assert result.seconds < 10
    assert kernel.run("print(begun, ended)").text.strip() == "1 1"
    _trains_again(kernel)


@pytest.mark.soak
def test_an_interrupt_within_a_step_of_twelve_seconds_waits_for_it_and_costs_no_names(kernel: Kernel) -> None:
    _trains_again(kernel)
    pids = _trainer_pids(kernel)
    source = """%%tfos_train --seed 1 -o model
import time
import keras, numpy as np, tensorflow as tf

pause = [0]
class Slow(keras.layers.Layer):
    def call(self, x):
        return x + tf.ensure_shape(tf.numpy_function(lambda: time.sleep(pause[0]) or np.float32(0), [], tf.float32), ())

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1), Slow()])
model.compile("sgd", "mse")
def slow_down(epoch, logs):
    pause[0] = 12 * (epoch == 2)
model.fit(np.ones((8, 4)), np.ones((8, 1)), batch_size=8, epochs=9, verbose=2,
          callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=slow_down)])
"""
    result = _interrupt_after(kernel, source, "epoch 2 of")
    assert result.error == "RunInterrupted", result.traceback
    assert "as they were when it ended: model." in result.traceback
    assert "The interrupt waits for what the workers are doing" in result.text
    assert _trainer_pids(kernel) == pids


def test_a_second_interrupt_ends_the_workers_at_once_and_says_that_no_name_came(kernel: Kernel) -> None:
    _trains_again(kernel)
    message_id = kernel.submit("""%%tfos_train -o found
import hashlib
found = 1
print("begins")
hashlib.pbkdf2_hmac("sha256", b"", b"", 300_000_000)
""")
    kernel.finish(message_id, until="begins")
    interrupted = time.monotonic()
    for _ in range(2):
        os.kill(kernel.pid, signal.SIGINT)
        time.sleep(0.5)
    result = kernel.finish(message_id)
    assert time.monotonic() - interrupted < 10
    assert result.error == "RunInterrupted", result.traceback
    assert "Nothing came back with -o: the first worker was ended" in result.traceback
    _trains_again(kernel)


FEEDS_LEFT = """
workers = get_ipython().magics_manager.registry["TFOSMagics"].runtime.cluster.workers
deadline = time.monotonic() + 10
while any(len(w.beat.feeds) != 1 for w in workers) and time.monotonic() < deadline:
    time.sleep(0.1)
print([len(w.beat.feeds) for w in workers])
"""


def _await_mark(kernel: Kernel) -> None:
    """Wait until Spark computes the slow column."""
    mark, deadline = kernel.folder / "computing", time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline, "Spark did not begin to compute within 60 s"
        time.sleep(0.05)
    mark.unlink()


@pytest.mark.soak
def test_an_interrupt_while_feeding_cancels_the_feed_and_leaves_no_rows(kernel: Kernel) -> None:
    kernel.run("%tfos stop")  # and with it the feeds of tests before
    assert not kernel.run(DAWDLE).error
    message_id = kernel.submit(train_cell().replace("fit(train", "fit(slow"))
    _await_mark(kernel)
    interrupted = time.monotonic()
    os.kill(kernel.pid, signal.SIGINT)
    result = kernel.finish(message_id)
    assert result.error == "RunInterrupted"
    assert time.monotonic() - interrupted < 5
    _trains_again(kernel)
    assert kernel.run(FEEDS_LEFT).text.strip() == "[1, 1]", "only the feed of `train` should be there"


@pytest.mark.soak
def test_stopping_the_cluster_leaves_a_job_of_the_user_running(kernel: Kernel) -> None:
    assert not kernel.run("%tfos start").error
    assert not kernel.run(DAWDLE).error
    kernel.run("""
import threading
done = []
def count():
    done.append(spark.range(0, 400, 1, 1).select(dawdle("id").alias("x")).agg(F.sum("x")).collect()[0][0])
job = threading.Thread(target=count); job.start()
""")
    stopped = kernel.run("%tfos stop")
    assert not stopped.error
    assert stopped.seconds < 10
    assert kernel.run("job.join(60); print(done)").text.strip() == "[400.0]"
    assert kernel.run("print(spark.range(7).count())").text.strip() == "7"
