"""Jobs that feed programs end with the programs, whichever of the two was first."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tfos_magic.cluster import startup
from tfos_magic.errors import FeedError
from tfos_magic.tensorflowonspark import feeding
from tfos_magic.tensorflowonspark.feeding import Feeding

pytestmark = pytest.mark.slow


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes what is cancelled: a job that has not begun yet hears nothing of it."""
    tags: list[str] = []
    monkeypatch.setattr(feeding, "cancel_tag", lambda spark, tag: tags.append(tag))
    monkeypatch.setattr(feeding, "job_tag", lambda spark, tag: nullcontext())
    return tags


def made() -> Feeding:
    cluster: Any = SimpleNamespace(spark=None, tell=lambda rank, message: None)
    return Feeding(cluster, "run", [0])


def test_a_job_that_was_about_to_begin_when_the_programs_failed_is_cancelled_too(cancelled: list[str]) -> None:
    fed, begun = made(), threading.Event()

    def deal() -> list[str]:
        begun.set()
        while len(cancelled) < 3:
            threading.Event().wait(0.01)
        raise RuntimeError("cancelled")

    def feed() -> None:
        with pytest.raises(RuntimeError, match="cancelled"):
            fed._feed(deal)

    job = threading.Thread(target=feed, daemon=True)
    job.start()
    assert begun.wait(10)
    fed.fail("the programs have ended")
    job.join(10)
    assert not job.is_alive()


def test_no_job_begins_after_the_programs_have_failed(cancelled: list[str]) -> None:
    fed = made()
    fed.fail("the programs have ended")
    assert len(cancelled) == 1
    with pytest.raises(FeedError, match="the programs have ended"):
        fed._feed(lambda: pytest.fail("it began"))


class Query:
    """A query that has fed what there is after so many ``seconds``."""

    isActive = True

    def __init__(self, seconds: float) -> None:
        self.seconds, self.calls = seconds, list[str]()

    def processAllAvailable(self) -> None:
        threading.Event().wait(self.seconds)
        self.calls.append("fed")

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        self.calls.append("stopped")


def test_a_stream_is_stopped_when_what_it_has_is_fed() -> None:
    fed, query = made(), Query(0.3)
    fed._queries.append(query)
    fed.end(60)
    assert query.calls == ["fed", "stopped"]


def test_rows_of_a_stream_that_the_programs_have_not_had_are_told_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "SAY_SECONDS", 0.0)
    fed, query = made(), Query(5)
    fed._queries.append(query)
    fed.end(0.3)
    assert query.calls == ["stopped"]
    assert capsys.readouterr().err.splitlines() == [
        "waiting for the rows that a stream has for the programs",
        "shutdown() ended a stream that had more rows: the programs did not get them.",
    ]
