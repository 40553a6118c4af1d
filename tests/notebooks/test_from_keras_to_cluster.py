"""One line more, and the weights are those of one process."""

from __future__ import annotations

import re

import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

SAME = 1e-5


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("01_from_keras_to_cluster")


def cells(executed: Executed, beginning: str) -> list[str]:
    return [cell.source for cell in executed.notebook.cells if cell.source.startswith(beginning)]


def test_the_cell_of_the_cluster_is_the_one_of_the_notebook_with_one_line_more(executed: Executed) -> None:
    (plain,) = cells(executed, "import keras")
    (trained,) = cells(executed, "%%tfos_train")
    assert trained.split("\n", 1)[1] == plain


def test_two_workers_trained_it(executed: Executed) -> None:
    assert sum(line.startswith("tfos-trainer") for line in executed.running_after("%%tfos_train")) == 2
    assert "Trained on 2 workers" in executed.text("%%tfos_train")


def test_all_weights_are_those_of_one_process(executed: Executed) -> None:
    told = re.search(r"([\d,]+) weights, largest difference (\S+)", executed.text("import numpy"))
    assert told is not None
    assert told[1] == "9,898"
    assert 0 < float(told[2]) <= SAME


def test_every_epoch_is_that_of_one_process(executed: Executed) -> None:
    by_one = re.findall(r"val_accuracy: (\d\.\d+) - val_loss: (\d\.\d+)", executed.text("import keras"))
    by_two = re.findall(r"^epoch .* val_accuracy (\S+) · val_loss (\S+)$", executed.text("%%tfos_train"), re.MULTILINE)
    assert len(by_one) == len(by_two) == 8
    for one, two in zip(by_one, by_two, strict=True):
        assert [float(value) for value in two] == pytest.approx([float(value) for value in one], abs=2e-3)
    assert float(by_two[-1][0]) > 0.93


def test_the_curves_and_the_halves_of_the_batch_are_drawn(executed: Executed) -> None:
    assert len(executed.pictures("import matplotlib")) == 1
    assert len(executed.pictures("figure, axes")) == 1
    assert sorted(re.findall(r"rows (\d+) to (\d+)", executed.text("%%tfos_run"))) == [("0", "31"), ("32", "63")]


def test_the_mean_of_the_halves_is_the_gradient_of_the_whole(executed: Executed) -> None:
    told = re.search(r"largest gradient (\S+), largest difference (\S+)", executed.text("import tensorflow"))
    assert told is not None
    assert float(told[2]) < 1e-5 * float(told[1])


def test_nothing_runs_after_the_stop(executed: Executed) -> None:
    assert not [line for line in executed.running_after("%tfos stop") if line.startswith("tfos-trainer")]
