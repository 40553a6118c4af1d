"""How many cores a session has to give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tfos_magic.spark import session


@pytest.mark.parametrize(("ended", "busy"), [((0, 0), 3), ((1, 0), 3), ((1, 2), 1), ((1, 3), 0)])
def test_tasks_that_spark_has_not_told_to_run_are_counted(
    ended: tuple[int, int], busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = [
        SimpleNamespace(numTasks=tasks, numCompletedTasks=done, numActiveTasks=0)
        for tasks, done in zip((1, 3), ended, strict=True)
    ]
    tracker = SimpleNamespace(getActiveStageIds=lambda: [0, 1, 2], getStageInfo=lambda stage: [*stages, None][stage])
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    monkeypatch.setattr(session, "is_connect", lambda spark: False)
    monkeypatch.setattr(session, "total_cores", lambda spark: 3)
    monkeypatch.setattr(session, "task_cpus", lambda spark: 1)
    assert session.busy_cores(spark) == busy
