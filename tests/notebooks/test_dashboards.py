"""Dashboards: parts, a launcher and runs compared, without a page."""

from __future__ import annotations

import ast
import re

import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("11_dashboards")


def test_the_submitted_run_comes_to_its_end(executed: Executed) -> None:
    assert "accuracy" in executed.text("run.wait()")


def test_the_faster_rate_learns_more_in_eight_epochs(executed: Executed) -> None:
    slow, fast = ast.literal_eval(executed.text("for rate in").splitlines()[-1])
    assert fast > 0.93 > slow > 0.4


def test_the_runs_are_listed_with_what_they_were_given(executed: Executed) -> None:
    lines = executed.text("%tfos runs").splitlines()
    assert [re.split("  +", line)[:3] for line in lines[-3:]] == [
        ["1", "fit", "0.003"],
        ["2", "fit 2", "0.001"],
        ["3", "fit 3", "0.03"],
    ]
    assert lines[-1].split().count("done") == 1


def test_what_is_displayed_has_a_picture_for_pages_without_widgets(executed: Executed) -> None:
    assert "rate" in executed.text("from tfos_magic.widgets import Compare")


def test_it_takes_less_than_three_minutes(executed: Executed) -> None:
    assert executed.seconds < 180
