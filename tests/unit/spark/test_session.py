"""What a session's cores are taken by, and what it is after its end."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tfos_magic.spark import session as sessions
from tfos_magic.spark.jvm import JAVA_ENDED


class Executors:
    """Spark's scheduler, of a map of Scala's: so many tasks on one executor."""

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks

    def runningTasksByExecutors(self) -> Any:
        left: Iterator[Any] = iter([SimpleNamespace(_1=lambda: "driver", _2=lambda: self.tasks)])
        return SimpleNamespace(iterator=lambda: SimpleNamespace(hasNext=self._once(), next=lambda: next(left)))

    @staticmethod
    def _once() -> Any:
        answers = iter([True, False])
        return lambda: next(answers)


class Context:
    """A context with one running task of an agent."""

    def __init__(self) -> None:
        scheduler = Executors(1)
        self.tags: list[str] = []
        self._jsc: Any = SimpleNamespace(sc=lambda: SimpleNamespace(taskScheduler=lambda: scheduler))
        self._gateway = SimpleNamespace(proc=SimpleNamespace(poll=lambda: None))

    def getConf(self) -> dict[str, str]:
        return {"spark.task.cpus": "1"}

    def addJobTag(self, tag: str) -> None:
        self.tags.append(tag)

    def removeJobTag(self, tag: str) -> None:
        self.tags.remove(tag)


@pytest.fixture
def spark() -> Any:
    return SimpleNamespace(sparkContext=Context())


def test_a_task_of_several_cores_counts_in_full_while_it_runs(spark: Any) -> None:
    with sessions.job_tag(spark, "an-agent", cores=3):
        assert sessions.busy_cores(spark) == 3
    with sessions.job_tag(spark, "an-ordinary-job"):
        assert sessions.busy_cores(spark) == 1
    assert spark.sparkContext.tags == []


def test_a_session_whose_java_process_has_ended_is_told_from_one_that_was_stopped(spark: Any) -> None:
    assert not sessions.is_stopped(spark)
    spark.sparkContext._gateway.proc.poll = lambda: -9
    assert sessions.is_stopped(spark)
    assert sessions.end_of(spark) == JAVA_ENDED
    spark.sparkContext._gateway.proc.poll, spark.sparkContext._jsc = lambda: None, None
    assert sessions.is_stopped(spark)
    assert "make a new session" in sessions.end_of(spark)
