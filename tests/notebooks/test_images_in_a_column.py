"""Images in a column: they are decoded in the workers, and their rows are fed once."""

from __future__ import annotations

import re

import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

NARROW = "%%tfos_train --features patch --label photograph --batch-size 32 --seed 1 -o narrow"
WIDE = "%%tfos_train --features patch --label photograph --batch-size 32 --seed 1 -o wide"


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("20_images_in_a_column")


def test_the_photographs_are_told_apart(executed: Executed) -> None:
    right = dict(re.findall(r"^(\w+): (\d\.\d+) of the unseen", executed.text("for name, run in"), re.MULTILINE))
    assert float(right["narrow"]) > 0.75
    assert float(right["wide"]) > 0.88
    assert len(executed.pictures("wrong =")) == 1


def test_functions_of_the_notebook_decode_without_complaint(executed: Executed) -> None:
    assert "AutoGraph" not in executed.text(NARROW)


def test_the_second_training_is_fed_nothing(executed: Executed) -> None:
    first, second = executed.text(NARROW), executed.text(WIDE)
    assert "already on the workers" not in first
    fed = dict(re.findall(r"^(\w+): (\d+) rows", first, re.MULTILINE))
    assert sum(map(int, fed.values())) == 520
    assert fed == dict(re.findall(r"^(\w+): (\d+) rows · already on the workers$", second, re.MULTILINE))
    assert len(fed) == 2
