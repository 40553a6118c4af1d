"""Tabular data: features in SQL, a weighted training with embeddings, scores back, and metrics that others confirm."""

from __future__ import annotations

import re

import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

TRAIN = "%%tfos_train --features branch,payment,numbers --label leaves --weight weight"


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("14_tabular_end_to_end")


def _by_model(text: str) -> dict[str, list[float]]:
    rows = re.findall(r"^\| *(network|trees)\|(.*)\|$", text, re.MULTILINE)
    return {name: [float(value) for value in values.split("|")] for name, values in rows}


def test_the_tables_are_as_the_text_says(executed: Executed) -> None:
    customers = pq.read_table(executed.folder / "data" / "customers").to_pandas()
    purchases = pq.read_table(executed.folder / "data" / "purchases").to_pandas()
    assert len(customers) == 8000
    assert customers["branch"].nunique() == 30
    assert 0.1 < customers["leaves"].mean() < 0.15
    assert 125_000 < len(purchases) < 140_000
    assert purchases["day"].between(0, 179).all()
    assert f"8,000 customers, {len(purchases):,} purchases" in executed.text("spark.conf.set")


def test_every_customer_has_features_and_both_classes_weigh_the_same(executed: Executed) -> None:
    features = pq.read_table(executed.folder / "data" / "features").to_pandas()
    assert features["customer"].nunique() == len(features) == 8000
    assert set(features["numbers"].map(len)) == {7}
    weighs = features.groupby("leaves")["weight"].sum()
    assert weighs[0] == pytest.approx(4000, rel=1e-3)
    assert weighs[1] == pytest.approx(4000, rel=1e-3)


def test_all_rows_of_both_parts_are_fed(executed: Executed) -> None:
    counted = re.search(
        r"([\d,]+) rows to train on, ([\d,]+) to validate", executed.text('spark.sql("""\n    WITH fig')
    )
    assert counted is not None
    fed = dict(re.findall(r"^(\w+): ([\d,]+) rows", executed.text(TRAIN), re.MULTILINE))
    assert {name: int(rows.replace(",", "")) for name, rows in fed.items()} == {
        "train": int(counted[1].replace(",", "")),
        "validation": int(counted[2].replace(",", "")),
    }


def test_the_validation_rises_well_above_chance(executed: Executed) -> None:
    told = re.findall(r"^epoch \d of 8 .*val_auc (\d\.\d+)", executed.text(TRAIN), re.MULTILINE | re.IGNORECASE)
    assert len(told) == 8
    assert float(told[-1]) > 0.75


def test_the_auc_of_sql_is_that_of_scikit_learn(executed: Executed) -> None:
    scored = pq.read_table(executed.folder / "data" / "scored").to_pandas()
    told = _by_model(executed.text('spark.sql("""\n    CREATE OR REPLACE'))
    for name in ("network", "trees"):
        customers, leaving, auc = told[name]
        assert customers == len(scored)
        assert leaving == scored["leaves"].sum()
        assert auc == pytest.approx(roc_auc_score(scored["leaves"], scored[name]), abs=6e-4)
        assert auc > 0.75
    assert abs(told["network"][2] - told["trees"][2]) < 0.06


def test_the_best_tenth_reaches_several_times_what_chance_does(executed: Executed) -> None:
    told = _by_model(executed.text('spark.sql("""\n    WITH tenths'))
    for reached, leaving, share in told.values():
        assert share == pytest.approx(reached / leaving, abs=1e-3)
        assert share > 0.3


def test_of_those_above_one_half_fewer_than_half_leave(executed: Executed) -> None:
    told = _by_model(executed.text('spark.sql("""\n    SELECT model, sum(int(score'))
    for _, leaving, found in told.values():
        assert leaving < 0.5
        assert found > 0.5


def test_it_takes_less_than_three_minutes_and_leaves_nothing(executed: Executed) -> None:
    assert executed.seconds < 180
    assert executed.left == []
