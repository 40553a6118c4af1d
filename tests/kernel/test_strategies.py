"""The other strategies and --resume, as a notebook starts them."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.kernel_driver import SESSION, Kernel, train_cell

CELL = """%%tfos_train {options}
import keras, numpy as np, pathlib, time
keras.utils.set_random_seed(5)
rng = np.random.default_rng(3)
x = rng.normal(size=(96, 6)).astype("float32")
y = x @ rng.normal(size=(6, 1)).astype("float32")
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
patience = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: time.sleep({pause} * (epoch > 2)))
history = model.fit(x, y, epochs=6, batch_size=16, callbacks=[patience])
final = np.concatenate([w.ravel() for w in model.get_weights()])
"""


@pytest.mark.soak
def test_strategy_local_trains_and_says_what_it_sent(kernel: Kernel) -> None:
    result = kernel.run(train_cell("--label y --strategy local --sync-every 4 --outer-momentum 0.5 -o model,history"))
    assert not result.error, result.traceback
    assert re.search(r"[\d.]+ k?B sent per epoch", result.text)
    assert not kernel.run("assert len(history.history['loss']) == 2").error


@pytest.mark.soak
def test_options_that_belong_to_another_strategy_start_nothing(kernel: Kernel) -> None:
    result = kernel.run(train_cell("--label y --sync-every 4"))
    assert result.error == "UsageError"
    assert "--strategy local" in result.traceback


@pytest.mark.soak
def test_a_cluster_gets_the_servers_that_async_needs_and_trains(kernel: Kernel) -> None:
    assert not kernel.run("%tfos start -n 2").error
    result = kernel.run(train_cell("--label y --strategy async"))
    assert not result.error, result.traceback
    assert "2 workers and 1 parameter server," in kernel.run("%tfos status").text
    result = kernel.run(train_cell("-n 2 --ps 1 --label y --strategy async --max-staleness 4 -o model,history"))
    assert not result.error, result.traceback
    assert "sent per epoch" in result.text
    assert "1 parameter server" in kernel.run("%tfos status").text
    assert not kernel.run("assert len(model.get_weights()) == 4 and len(history.history['loss']) == 2").error
    assert not kernel.run("%tfos stop").error


@pytest.mark.soak
def test_a_run_goes_on_in_a_new_kernel_where_a_killed_one_left_it(
    new_kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    options = f"-n 2 --checkpoint-dir {tmp_path / 'kept'} -o final,history"
    first = _started(new_kernel())
    first.finish(first.submit(CELL.format(options=options, pause=60)), until="epoch 3 of 6")
    deadline = time.monotonic() + 30
    while not list(tmp_path.rglob("*epoch3-step0*")):
        assert time.monotonic() < deadline, list(tmp_path.rglob("*"))
        time.sleep(0.1)
    os.kill(first.pid, signal.SIGKILL)
    first.end()
    second = _started(new_kernel())
    resumed = second.run(CELL.format(options=f"{options} --resume", pause=0))
    assert not resumed.error, resumed.traceback
    assert "Going on from epoch 4 of the run in" in resumed.text
    assert len(re.findall(r"^epoch \d of 6", resumed.text, re.MULTILINE)) == 6
    assert not second.run("assert len(history.history['loss']) == 6, history.history; resumed = final").error
    undisturbed = second.run(CELL.format(options="-n 2 -o final", pause=0))
    assert not undisturbed.error, undisturbed.traceback
    same = second.run("assert abs(final - resumed).max() <= 1e-6, abs(final - resumed).max()")
    assert not same.error, same.traceback


@pytest.mark.soak
def test_resuming_where_nothing_was_kept_begins_at_the_start_and_says_so(kernel: Kernel, tmp_path: Path) -> None:
    result = kernel.run(CELL.format(options=f"--checkpoint-dir {tmp_path} --resume", pause=0))
    assert not result.error, result.traceback
    assert "There is no checkpoint in" in result.text


def _started(kernel: Kernel) -> Kernel:
    for source in ("%load_ext tfos_magic", SESSION):
        result = kernel.run(source)
        assert not result.error, result.traceback
    return kernel
