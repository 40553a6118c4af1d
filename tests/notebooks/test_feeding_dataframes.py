"""Feeding DataFrames: the rows that SQL made reach the cell with the shapes that the text names."""

from __future__ import annotations

import re

import pyarrow.parquet as pq
import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

DIGITS = (
    "%%tfos_train --label digit --batch-size 64 --pad inked=64 --null-mask middle --seed 1 -o history\nimport keras"
)


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("02_feeding_dataframes")


def test_sql_makes_one_row_of_each_image_and_nulls_of_the_zeros(executed: Executed) -> None:
    table = pq.read_table(executed.folder / "data" / "digits").to_pandas()
    assert len(table) == 1797
    empty = table[table["middle"].isna()]["digit"]
    assert len(empty) > 50
    assert (empty == 0).mean() > 0.95
    assert len(executed.pictures("counted =")) == 1


def test_what_would_be_fed_is_told_with_sizes_that_are_not_known_yet(executed: Executed) -> None:
    told = executed.text("%%tfos_train --label digit --batch-size 64 --pad inked=64 --null-mask middle --dry-run")
    assert "inked int32 (rows, ?); centre {down float64 (rows,), across float64 (rows,)}" in told
    assert "Trained" not in told


def test_all_rows_of_both_parts_are_fed_with_the_columns_that_the_text_names(executed: Executed) -> None:
    counted = re.search(r"(\d+) rows to train on, (\d+) to validate", executed.text("train, validation ="))
    assert counted is not None
    status = executed.text("%tfos status")
    fed = {name: int(rows.replace(",", "")) for name, rows in re.findall(r"DataFrame (\w+): ([\d,]+) rows", status)}
    assert fed == {"train": int(counted[1]), "validation": int(counted[2])}
    assert sum(fed.values()) == 1797
    assert len(re.findall(r"inked int32 \(rows, \d+\)", status)) == 2
    assert len(re.findall(r"middle_mask bool \(rows,\)", status)) == 2


def test_the_digits_are_told_apart(executed: Executed) -> None:
    validated = re.findall(r"val_accuracy (\d\.\d+)", executed.text(DIGITS))
    assert float(validated[-1]) > 0.75
