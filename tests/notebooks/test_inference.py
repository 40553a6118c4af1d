"""The tutorial on inference: Spark's predictions are Keras's own, whatever form the model has."""

from __future__ import annotations

import re

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

TESTED = 597


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("07_inference")


def test_the_predictions_are_those_of_the_model_itself(executed: Executed) -> None:
    assert difference(executed.text("import numpy")) < 1e-5


def test_a_saved_model_predicts_the_same(executed: Executed) -> None:
    assert difference(executed.text("import tfos_magic.frames")) < 1e-5


def test_a_keras_file_names_the_classes(executed: Executed) -> None:
    shown = executed.text("%tfos_predict digits.keras")
    assert " |-- reads: string[?]" in shown
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    read = re.findall(r"^\d .* (\d) +(\w+)$", shown, re.MULTILINE)
    assert len(read) == 10
    assert sum(names[int(digit)] == name for digit, name in read) >= 7


def test_a_model_of_two_outputs_makes_two_columns(executed: Executed) -> None:
    shown = executed.text("%tfos_predict inside")
    assert " |-- hidden: float32[?,64]" in shown
    assert " |-- probabilities: float32[?,10]" in shown
    assert len(executed.pictures("import matplotlib")[0]) > 10_000


def test_the_scored_rows_are_in_parquet(executed: Executed) -> None:
    table = pq.read_table(executed.folder / "scored.parquet")
    assert table.column_names == ["id", "pixels", "digit", "probabilities", "predicted"]
    assert sorted(table["id"].to_pylist()) == list(range(1200, 1200 + TESTED))
    probabilities = np.array(table["probabilities"].to_pylist())
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    assert table["predicted"].to_pylist() == probabilities.argmax(axis=1).tolist()
    assert table["digit"].to_pylist() == load_digits().target[table["id"].to_numpy()].tolist()


def test_sql_counts_what_is_right(executed: Executed) -> None:
    table = pq.read_table(executed.folder / "scored.parquet")
    right = int(np.sum(table["predicted"].to_numpy() == table["digit"].to_numpy()))
    shown = executed.text('spark.sql("""\n    SELECT count(*)')
    assert re.search(rf"\| +{TESTED}\| +{right}\| +(\S+)\|", shown)
    assert right > 0.88 * TESTED


def test_the_confusion_and_the_worst_mistakes_are_drawn(executed: Executed) -> None:
    for cell in ("confusion = spark.sql", "worst = spark.sql"):
        assert len(executed.pictures(cell)) == 1
        assert len(executed.pictures(cell)[0]) > 5000


def difference(text: str) -> float:
    found = re.search(r"largest difference: (\S+)", text)
    assert found is not None
    return float(found[1])
