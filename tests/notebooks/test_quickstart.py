"""The quickstart runs from top to bottom as a newcomer runs it, and shows what its text promises."""

from __future__ import annotations

import re

import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("00_quickstart")


def test_the_model_that_came_back_reads_more_than_95_of_100_unseen_digits(executed: Executed) -> None:
    accuracy = re.search(r"Test accuracy: (\d\.\d+)", executed.text("import numpy"))
    assert accuracy is not None
    assert float(accuracy[1]) > 0.95


def test_two_trainers_trained(executed: Executed) -> None:
    assert sum(line.startswith("tfos-trainer") for line in executed.running_after("%%tfos_train")) == 2
    status = executed.text("%tfos status")
    assert re.findall(r"worker (\d)  \S+  pid \d+  cpu  ready", status) == ["0", "1"]


def test_the_workers_were_fed_all_rows_of_the_split_and_no_other(executed: Executed) -> None:
    counted = re.search(
        r"(\d+) rows to train on, (\d+) to validate, (\d+) to test", executed.text("images = spark.read")
    )
    assert counted is not None
    fed = dict(re.findall(r"^(\w+): ([\d,]+) rows", executed.text("%%tfos_train"), re.MULTILINE))
    assert {name: int(rows.replace(",", "")) for name, rows in fed.items()} == {
        "train": int(counted[1]),
        "validation": int(counted[2]),
    }
    assert sum(map(int, counted.groups())) == 1797


def test_every_epoch_is_told_with_its_validation(executed: Executed) -> None:
    told = re.findall(r"^epoch (\d+) of 15 · accuracy .* loss .* val_accuracy ", executed.text("%%tfos_train"), re.M)
    assert [int(epoch) for epoch in told] == list(range(1, 16))
    assert "Trained on 2 workers" in executed.text("%%tfos_train")


def test_the_curve_is_drawn_and_tensorboard_shown(executed: Executed) -> None:
    assert len(executed.pictures("import matplotlib")) == 1
    assert re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", executed.text("%tfos tensorboard"))
    assert list((executed.folder / "runs").glob("*/*/events.out.tfevents.*"))


def test_stop_ends_the_workers_and_tensorboard_and_the_kernel_takes_the_rest(executed: Executed) -> None:
    stopped = executed.running_after("%tfos tensorboard --stop")
    assert not [line for line in stopped if line.startswith("tfos-trainer") or "tensorboard" in line]
    assert executed.left == []
