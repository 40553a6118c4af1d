"""Process prediction: a log in XES, and a model with two outputs that knows more than the current activity."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

SPACE = "{http://www.xes-standard.org/}"
TRAIN = "%%tfos_train --features activities,elapsed,next,remaining"


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("16_process_prediction")


@pytest.fixture(scope="module")
def table(executed: Executed) -> dict[str, list[float]]:
    """By current activity: rows, accuracy of the model and of the baseline, errors in days: model, mean, median."""
    rows = re.findall(r"^\|([a-z][a-z ]*?) *\|(.*\d.*)\|$", executed.text("train.createOrReplace"), re.MULTILINE)
    return {name: [float(value) for value in values.split("|")] for name, values in rows}


def test_spark_reads_all_events_of_the_log(executed: Executed) -> None:
    traces = ElementTree.parse(executed.folder / "data" / "claims.xes").getroot().findall(f"{SPACE}trace")
    count = sum(len(trace.findall(f"{SPACE}event")) for trace in traces)
    assert len(traces) == 900
    assert f"900 cases, {count:,} events" in executed.text("log = (")
    events = pq.read_table(executed.folder / "data" / "events").to_pandas()
    assert len(events) == count
    assert not events.isna().any().any()


def test_every_event_but_the_last_is_a_row_and_no_case_is_in_two_parts(executed: Executed) -> None:
    events = pq.read_table(executed.folder / "data" / "events").to_pandas()
    rows = pq.read_table(executed.folder / "data" / "beginnings").to_pandas()
    assert len(rows) == len(events) - 900
    assert (rows.groupby("claim")["part"].nunique() == 1).all()
    assert rows["activities"].map(len).max() <= 12
    assert (rows["remaining"] > 0).all()
    assert rows["next"].min() >= 1


def test_both_outputs_learn(executed: Executed) -> None:
    told = re.findall(
        r"^epoch \d of 8 .*val_next_accuracy (\S+) .*val_remaining_mae (\S+)", executed.text(TRAIN), re.MULTILINE
    )
    assert len(told) == 8
    assert float(told[-1][0]) > float(told[0][0])
    assert float(told[-1][1]) < float(told[0][1])


def test_the_model_is_better_than_both_baselines(table: dict[str, list[float]]) -> None:
    _, model, frequent, days, mean, median = table["all"]
    assert model > frequent + 0.03
    assert days < median <= mean


def test_it_is_better_where_the_past_decides(table: dict[str, list[float]]) -> None:
    assert table["check form"][1] > table["check form"][2] + 0.1
    assert table["ask customer"][1] == table["ask customer"][2] == 1
    assert sum(rows for name, (rows, *_) in table.items() if name != "all") == table["all"][0]


def test_it_takes_less_than_three_minutes_and_leaves_nothing(executed: Executed) -> None:
    assert executed.seconds < 180
    assert executed.left == []
