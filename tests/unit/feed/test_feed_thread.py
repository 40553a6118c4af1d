"""A feed under way is cancelled without a call to Spark that an interrupt could meet."""

from __future__ import annotations

import threading
import time

import pytest

from tfos_magic.errors import FeedError
from tfos_magic.feed.driver.feed_thread import FeedJobThread
from tfos_magic.feed.driver.sources.fed_frame import SpooledFeed


def _waiting(job: FeedJobThread) -> SpooledFeed:
    while True:
        job.check()
        time.sleep(0.01)


def test_spark_is_asked_to_cancel_in_a_thread_that_no_interrupt_meets() -> None:
    """PySpark prints a traceback for a call that a second interrupt ends."""
    asked: list[tuple[str, threading.Thread]] = []

    def cancel_jobs(tag: str) -> bool:
        asked.append((tag, threading.current_thread()))
        return True

    job = FeedJobThread(_waiting, cancel_jobs)
    job.cancel()
    ((tag, thread),) = asked
    assert tag == job.tag
    assert thread is not threading.main_thread()
    assert not job.running
    with pytest.raises(FeedError, match="cancelled before it began"):
        job.result()


def test_a_spark_that_does_not_answer_is_not_waited_for() -> None:
    answered = threading.Event()
    job = FeedJobThread(_waiting, lambda tag: answered.wait(60))
    began = time.monotonic()
    job.cancel(timeout=0.2)
    assert time.monotonic() - began < 30
    answered.set()
    assert job.wait(10)
