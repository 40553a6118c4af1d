"""From TensorFlowOnSpark: the program runs as it is, and its port does what the text says."""

from __future__ import annotations

import re

import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

RECORDS = "%%tfos_train --seed 1 -o history"


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("08_from_tensorflowonspark")


def test_the_program_runs_as_it_is_and_exports_what_it_learned(executed: Executed) -> None:
    losses = re.findall(r"^epoch \d+ of 10 .* loss (\d+\.\d+)", executed.text("from argparse import"), re.MULTILINE)
    assert len(losses) == 10
    assert float(losses[-1]) < float(losses[0]) / 2
    assert (executed.folder / "data" / "export" / "saved_model.pb").is_file()


def test_the_port_learns_to_read_the_digits(executed: Executed) -> None:
    told = executed.text("%%tfos_train --features pixels")
    assert "Trained on 2 workers" in told
    accuracies = re.findall(r"^epoch \d+ of 15 · accuracy (\d\.\d+)", told, re.MULTILINE)
    assert len(accuracies) == 15
    assert (executed.folder / "data" / "digits.keras").is_file()
    assert float(accuracies[-1]) > 0.9


def test_every_row_is_in_the_records_and_they_train_without_spark(executed: Executed) -> None:
    fed = re.search(r"^train: ([\d,]+) rows", executed.text("%%tfos_train --features pixels"), re.MULTILINE)
    assert fed is not None
    assert f"{int(fed[1].replace(',', ''))} records of ['digit', 'pixels']" in executed.text("again = spark")
    assert list((executed.folder / "data" / "records").glob("*.tfrecord"))
    losses = [float(loss) for loss in re.findall(r"^epoch .* loss (\d+\.\d+)", executed.text(RECORDS), re.MULTILINE)]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert "rows/s" in executed.text(RECORDS)


def test_workers_by_themselves_reach_what_their_rates_allow(executed: Executed) -> None:
    told = re.findall(r"worker (\d): learning rate (\S+), accuracy (\d\.\d+)", executed.text("for rank, reached"))
    assert [(rank, rate) for rank, rate, _ in told] == [("0", "0.001"), ("1", "0.02")]
    assert float(told[1][2]) > float(told[0][2]) + 0.2


def test_prediction_needs_no_cluster_and_its_columns_are_judged_in_sql(executed: Executed) -> None:
    assert "The cluster has ended" in executed.text("%tfos stop")
    assert not [line for line in executed.running_after("%tfos stop") if line.startswith("tfos-trainer")]
    judged = re.search(r"\|\s*(\d+)\|\s*(\d\.\d+)\|", executed.text("scored.createOrReplace"))
    assert judged is not None
    assert 250 < int(judged[1]) < 450
    assert float(judged[2]) > 0.9
