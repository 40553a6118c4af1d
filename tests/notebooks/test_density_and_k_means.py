"""Blocks at work: the kernel density is SciPy's, and k-means ends where scikit-learn's does."""

from __future__ import annotations

import re

import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("21_density_and_k_means")


def test_the_kernel_density_is_scipys_and_is_drawn(executed: Executed) -> None:
    cell = "import matplotlib"
    assert difference(executed.text(cell)) < 1e-9
    assert len(executed.pictures(cell)) == 1
    assert len(executed.pictures(cell)[0]) > 5000


def test_k_means_ends_at_the_centres_of_scikit_learn_and_draws_them(executed: Executed) -> None:
    assert re.search(r"^1\d rounds$", executed.text("first = digits"), re.MULTILINE)
    cell = "from sklearn.cluster"
    assert difference(executed.text(cell)) < 1e-6
    assert len(executed.pictures(cell)) == 1
    assert len(executed.pictures(cell)[0]) > 3000


def test_every_image_is_in_one_of_ten_groups(executed: Executed) -> None:
    groups = re.findall(r"\| +(\d+)\| +(\d+)\|", executed.text("grouped = tfs"))
    assert [int(group) for group, _ in groups] == list(range(10))
    assert sum(int(count) for _, count in groups) == 1797


def difference(text: str) -> float:
    found = re.search(r"largest difference to [\w-]+: (\S+)", text)
    assert found is not None
    return float(found[1])
