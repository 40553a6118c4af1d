"""Which feed goes when the spools are full."""

from types import SimpleNamespace
from typing import Any

import pytest

from tfos_magic.feed.driver.feed_thread import FeedJobThread
from tfos_magic.feed.driver.sources.fed_frame import SpooledFeed
from tfos_magic.feed.driver.spooled_feeds import FeedKey, FeedStore
from tfos_magic.transport.messages import Message, NeedRoom, RefuseFeed, ReleaseFeed


class Rows:
    """A DataFrame of the notebook, which a feed is kept for."""


class Store(FeedStore):
    """The feeds of one worker, which are in its spool at once."""

    def __init__(self) -> None:
        self.told: list[Message] = []
        super().__init__(None, [SimpleNamespace()], "", lambda rank, message: self.told.append(message))  # type: ignore[arg-type,list-item]

    def _feed(self, df: Any, key: FeedKey, parallelism: int, job: FeedJobThread) -> SpooledFeed:
        return self._keep(key, df, SpooledFeed(job.feed_id, 1, 8, 0.0))

    def bring(self, rows: Rows, run: str) -> str:
        if (known := self.find(rows, None, run, 1)) is not None:  # type: ignore[arg-type]
            return known.feed_id
        job = self.start(rows, None, run, 1)  # type: ignore[arg-type]
        assert job.wait(10)
        return job.result().feed_id

    def ask(self, *held: str) -> Message:
        """What is answered where a feed that comes finds its room taken by these."""
        self.told.clear()
        self.note(0, NeedRoom("new", list(held)))
        (answer,) = self.told
        return answer


@pytest.mark.parametrize("again", [False, True], ids=["fed", "found"])
def test_no_run_loses_a_feed_to_another_that_goes_on_beside_it(again: bool) -> None:
    store, mine, others = Store(), Rows(), Rows()
    store.begin_run("earlier", 1)
    if again:
        store.bring(mine, "earlier")
    store.in_use.end("earlier")

    store.begin_run("one", 1)
    used = store.bring(mine, "one")
    store.begin_run("two", 1)
    beside = store.bring(others, "two")
    assert isinstance(store.ask(used, beside), RefuseFeed)

    store.in_use.end("two")
    assert store.ask(used, beside) == ReleaseFeed(beside)
    assert isinstance(store.ask(used), RefuseFeed)
    store.in_use.end("one")
    assert store.ask(used) == ReleaseFeed(used)


def test_a_feed_that_two_runs_use_stays_until_both_have_ended() -> None:
    store, rows = Store(), Rows()
    for run in ("one", "two"):
        store.begin_run(run, 1)
        used = store.bring(rows, run)
    store.in_use.end("one")
    assert isinstance(store.ask(used), RefuseFeed)
    store.in_use.end("two")
    assert store.ask(used) == ReleaseFeed(used)
