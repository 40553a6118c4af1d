"""Sequences: an LSTM validated after every ten steps learns an order that means and spreads do not show."""

from __future__ import annotations

import re

import pyarrow.parquet as pq
import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

TRAIN = "%%tfos_train --features vibration --label grows"


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("15_sequences")


def test_sequences_have_the_lengths_that_the_text_names(executed: Executed) -> None:
    pumps = pq.read_table(executed.folder / "data" / "pumps").to_pandas()
    lengths = pumps["vibration"].map(len)
    assert len(pumps) == 3000
    assert (lengths.min(), lengths.max()) == (16, 48)
    assert 0.45 < pumps["grows"].mean() < 0.55


def test_mean_and_spread_are_the_same_for_both_kinds(executed: Executed) -> None:
    rows = re.findall(r"\| +([01])\| +(\d+)\| *(\S+)\| *(\S+)\|", executed.text("pumps.createOrReplaceTempView"))
    (_, falling, *first), (_, growing, *second) = rows
    assert int(falling) + int(growing) == 3000
    assert [float(value) for value in first] == pytest.approx([float(value) for value in second], abs=0.03)


def test_there_is_a_validation_for_every_ten_steps(executed: Executed) -> None:
    validated = re.findall(
        r"^epoch (\d+) of 30 · accuracy (\S+) .*val_accuracy (\S+)", executed.text(TRAIN), re.MULTILINE
    )
    told = re.search(r"(\d+) validations, the best after (\d+) steps", executed.text("%tfos status -o status"))
    assert told is not None
    assert len(validated) == int(told[1])
    assert int(told[2]) <= 10 * int(told[1])
    assert float(validated[0][1]) < 0.65
    assert max(float(accuracy) for *_, accuracy in validated) > 0.9
    seconds = re.search(r"(\S+) seconds of training, (\S+) of validation", executed.text("%tfos status -o status"))
    assert seconds is not None
    assert float(seconds[1]) > 0
    assert float(seconds[2]) > 0


def test_padding_is_skipped(executed: Executed) -> None:
    told = re.search(r"largest difference of any prediction: (\S+)", executed.text("import numpy"))
    assert told is not None
    assert float(told[1]) < 1e-5


def test_the_predictions_of_unseen_sequences_are_right(executed: Executed) -> None:
    scored = pq.read_table(executed.folder / "data" / "pumps_scored").to_pandas()
    rows = re.findall(r"\| *(all|\d\d to \d\d)\| +(\d+)\| *(\S+)\|", executed.text('scored.selectExpr("*"'))
    told = {minutes: (int(count), float(accuracy)) for minutes, count, accuracy in rows}
    assert told["all"][0] == len(scored) == sum(count for name, (count, _) in told.items() if name != "all")
    assert told["all"][1] == pytest.approx((scored["read"] == (scored["grows"] == 1)).mean(), abs=6e-4)
    assert told["all"][1] > 0.9
    assert told["16 to 23"][1] < told["36 to 48"][1]


def test_it_takes_less_than_three_minutes_and_leaves_nothing(executed: Executed) -> None:
    assert executed.seconds < 180
    assert executed.left == []
