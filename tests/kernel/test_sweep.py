"""``%%tfos_sweep`` in a real kernel, on Spark."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.kernel.kernel_driver import Kernel

CELL = """
import keras
rate = tfos.suggest_float("rate", 1e-3, 0.1, log=True)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(rate), "mse")
history = model.fit(train, epochs=4, verbose=0)
"""
LINE = "%%tfos_sweep --trials {trials} --metric loss -n 2 --label y --batch-size 200"


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_cell_is_searched_over_and_leaves_the_study_and_the_best_model(kernel: Kernel) -> None:
    line = LINE.format(trials=5) + " --pruner asha -o study,best,history"
    result = kernel.run(line + CELL, timeout=240)
    assert not result.error, result.traceback
    assert "Searching for the smallest loss." in result.text
    assert result.text.count("\ntrial ") == 5
    assert "★" in result.displays[-1]["text/html"]
    look = "print(type(study).__module__, len(study.trials), best.count_params(), len(history.history['loss']))"
    assert kernel.run(look).text.split() == ["optuna.study.study", "5", "5", "4"]
    told = kernel.run("print(study.best_value == min(t.value for t in study.trials if t.state.name == 'COMPLETE'))")
    assert told.text.strip() == "True"
    trained = kernel.run("%%tfos_train -n 2 --label y -o rate" + CELL, timeout=240)  # by itself: the middle
    assert not trained.error, trained.traceback
    assert float(kernel.run("print(rate)").text) == pytest.approx(1e-2)


def test_what_cannot_be_is_refused_before_anything_is_started(kernel: Kernel) -> None:
    for line, told in {
        "--trials 3": "Say what to optimise",
        "--trials 3 --metric loss -o best": "calls fit of by a name",
        "--trials 3 --metric loss --pruner asah": "Did you mean 'asha'?",
        "--trials 3 --metric loss -o nothing": "which the cell does not define",
    }.items():
        result = kernel.run(f"%%tfos_sweep {line}\nx = tfos.suggest_int('x', 1, 2)")
        assert told in result.traceback
    assert "--workers-per-trial" in kernel.run("%%tfos_sweep --help\n").text


KEPT = "%%tfos_sweep --trials {trials} --metric score --storage sqlite:///kept.db --resume -n 2 -o study,mine"
NUMBER = "\nscore = {more} + tfos.suggest_float('x', 0, 1)\nmine = 'new'"


@pytest.mark.soak
def test_a_study_that_goes_on_tells_what_it_does_not_bring_back(kernel: Kernel) -> None:
    kernel.run((KEPT + NUMBER).format(trials=2, more=2), timeout=240)
    assert kernel.run("print(mine, len(study.trials)); mine = 'old'; del study").text.split() == ["new", "2"]
    worse = kernel.run((KEPT + NUMBER).format(trials=4, more=0), timeout=240)
    assert not worse.error, worse.traceback
    assert re.search(r"note: mine: The best trial is number \d, of another sweep, whose model and names", worse.text)
    over = kernel.run((KEPT + NUMBER).format(trials=4, more=9))
    assert "The study has 4 trials already, so nothing is trained" in over.text
    assert kernel.run("print(mine, len(study.trials))").text.split() == ["old", "4"]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_an_interrupt_keeps_the_study_and_the_best_so_far(kernel: Kernel) -> None:
    message_id = kernel.submit(LINE.format(trials=500) + " -o study,best" + CELL)
    begun = kernel.finish(message_id, until="\ntrial 3 ", timeout=240)
    assert "\ntrial 3 " in begun.text, begun.traceback
    os.kill(kernel.pid, signal.SIGINT)
    result = kernel.finish(message_id)
    assert result.error == "RunInterrupted", result.traceback
    assert "What is done is kept" in result.traceback
    told = kernel.run("print(3 < len(study.trials) < 500, best.count_params(), study.best_value >= 0)")
    assert told.text.split() == ["True", "5", "True"]
