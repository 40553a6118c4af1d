"""The tutorial on TensorFrames: what it computes is what NumPy and SciPy say."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy.stats import gmean, hmean
from sklearn.datasets import load_iris

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("06_tensorframes")


def test_a_mapped_column_is_shown_and_nothing_of_tensorflows_own_notes(executed: Executed) -> None:
    shown = executed.text("%%tfos_map numbers")
    assert " |-- z: float64[?]" in shown
    assert re.findall(r"^\d +(\d\.0) +(\d+\.0)$", shown, re.MULTILINE) == [(f"{x}.0", f"{x + 3}.0") for x in range(10)]
    assert "oneDNN" not in shown
    assert "cpu_feature_guard" not in shown


def test_lengths_are_learnt_where_they_are_all_the_same(executed: Executed) -> None:
    shown = executed.text("pairs = numbers")
    assert re.findall(r"y: (\S+)", shown) == ["float64[?,?]", "float64[?,2]"]


def test_rows_of_different_lengths_have_their_norms(executed: Executed) -> None:
    lengths = re.findall(r"\[(.*?)\]\|\s*(\S+)\|", executed.text("vectors = spark"))
    assert {row: float(length) for row, length in lengths} == {"3.0, 4.0": 5.0, "1.0, 2.0, 2.0": 3.0, "5.0": 5.0}


def test_a_column_is_reduced_to_its_sum_and_its_greatest(executed: Executed) -> None:
    numbers = [float(number) for number in re.findall(r"\d+\.\d*", executed.text("total = tfs"))]
    assert numbers == [45.0, 285.0, 9.0, 81.0]


def test_the_three_means_of_each_kind_are_those_of_scipy(executed: Executed) -> None:
    iris = load_iris()
    rows = re.findall(
        r"^\d +(\w+) +(\S+) +(\S+) +(\S+)$", executed.text("from sklearn.datasets import load_iris"), re.M
    )
    assert [row[0] for row in rows] == sorted(iris.target_names)
    for name, *means in rows:
        petals = iris.data[iris.target == list(iris.target_names).index(name), 2]
        expected = [petals.mean(), gmean(petals), hmean(petals)]
        np.testing.assert_allclose([float(mean) for mean in means], expected, atol=1e-4)
