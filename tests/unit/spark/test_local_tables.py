"""Tables of this process on their way to Spark, as Arrow has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest

from tfos_magic.errors import DataError
from tfos_magic.spark.local_tables import all_to_spark, is_table, to_spark


class Session:
    """Stands for a Spark session: gives back the table that it is to make a DataFrame of."""

    @staticmethod
    def createDataFrame(table: pa.Table) -> pa.Table:
        return table


def made(value: Any) -> pa.Table:
    assert is_table(value)
    return to_spark(value, Session)


def test_tables_of_every_kind_become_the_same_columns() -> None:
    frame = pandas.DataFrame({"x": [1.5, 2.5], "y": np.array([1, 200], "uint8")}, index=[7, 8])
    for value in (frame, pa.table({"x": [1.5, 2.5], "y": pa.array([1, 200], pa.uint8())})):
        assert made(value).to_pydict() == {"x": [1.5, 2.5], "y": [1, 200]}
        assert [str(field.type) for field in made(value).schema] == ["double", "int16"]


def test_arrays_with_further_axes_become_lists() -> None:
    arrays = {"x": np.arange(12, dtype="float16").reshape(2, 3, 2), "y": [1, 2], "name": ["a", "b"]}
    table = made(arrays)
    assert str(table.schema.field("x").type) == "list<item: list<item: float>>"
    assert table.column("x").to_pylist() == arrays["x"].tolist()
    assert table.column("name").to_pylist() == ["a", "b"]


def test_what_cannot_be_a_table_is_told_by_its_name() -> None:
    for value in ({}, {"x": 1}, [1, 2], 3):
        assert not is_table(value)
    with pytest.raises(DataError, match=r"'train': .*2 \(x\), 3 \(y\) rows"):
        all_to_spark({"train": {"x": [1, 2], "y": [1, 2, 3]}}, Session())
    with pytest.raises(DataError, match="cannot be made a Spark DataFrame"):
        made(pandas.DataFrame({"x": [np.ones(2), "text"]}))
