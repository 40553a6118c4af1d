"""When things fail: a killed worker and an interrupt cost time, and the weights are those of the undisturbed run."""

from __future__ import annotations

import re

import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

INTERRUPTED = "%%tfos_train --seed 1 --checkpoint-dir checkpoints -o weights"
RESUMED = "%%tfos_train --seed 1 --checkpoint-dir checkpoints --resume"


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("05_when_things_fail")


def _largest_difference(text: str) -> float:
    found = re.search(r"largest difference of any weight: (\S+)", text)
    assert found is not None
    return float(found[1])


def test_the_worker_was_killed_in_the_middle_of_the_run_and_replaced(executed: Executed) -> None:
    killed = re.search(r"killed process \d+ after epoch (\d+)", executed.text("import os"))
    assert killed is not None
    assert 6 <= int(killed[1]) < 20
    told = executed.text("results = run.wait()")
    assert re.search(r"Worker 1 was killed by signal 9 \(SIGKILL.* restarted from epoch \d+ \(1 of 2 restarts\)", told)
    assert "1 restart, 20 epochs in the history" in told


def test_its_weights_are_those_of_the_undisturbed_run(executed: Executed) -> None:
    assert _largest_difference(executed.text("import matplotlib")) <= 1e-5
    assert len(executed.pictures("import matplotlib")) == 1


def test_an_interrupt_ends_the_run_before_its_end_and_leaves_the_workers(executed: Executed) -> None:
    told = executed.text(INTERRUPTED)
    assert "RunInterrupted: the run was stopped; its workers are free again." in told
    assert re.search(r"Stopped on 2 workers after .* \d+ of 20 epochs", told)
    assert "the workers are the same processes: True" in executed.text("print(f")


def test_the_interrupted_run_goes_on_from_its_checkpoint_to_the_same_weights(executed: Executed) -> None:
    told = executed.text(RESUMED)
    assert re.search(r"Going on from epoch \d+ of the run in .*checkpoints", told)
    assert "Trained on 2 workers" in told
    assert _largest_difference(executed.text("print(f")) <= 1e-5


def test_mistakes_are_shown_with_their_line_or_before_anything_is_sent(executed: Executed) -> None:
    told = executed.text("%%tfos_train\nimport keras")
    assert "WorkerError: ValueError on worker 0" in told
    assert re.search(r'-->   4 model = .*activation="rely"', told)
    misspelt = executed.text("%%tfos_train\nweights, history = trian")
    assert "CaptureError" in misspelt
    assert "Did you mean 'train'?" in misspelt


def test_the_doctor_finds_room_and_clean_looks_for_leftovers(executed: Executed) -> None:
    told = executed.text("%tfos stop")
    assert "✓ slots" in told
    assert "✓ executor slot 1 ports" in told
    assert "left behind" in executed.text("%tfos clean").lower()
