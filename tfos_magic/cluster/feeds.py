"""Which DataFrames lie in the workers' spools: fed once, used by every later cell that names the same DataFrame."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from tfos_magic.cluster.feed import FeedReport, feed_dataframe
from tfos_magic.cluster.session import Session, cancel_tag, job_tag
from tfos_magic.errors import FeedError
from tfos_magic.protocol import CommitFeed, FeedAttached, FeedOpened, Message, OpenFeed, ReleaseFeed
from tfos_magic.records.columns import Column, FeedPlan, decode_schema, field_column

ANSWER_TIMEOUT = 30.0


@dataclass(frozen=True)
class Feed:
    """A DataFrame that lies in the spools; rows and bytes over all ranks, seconds of the feed job.

    ``columns`` are those that the cell gets, their shapes known.
    """

    feed_id: str
    rows: int
    bytes: int
    seconds: float
    columns: tuple[Column, ...] = ()


class FeedStore:
    """The feeds of one cluster. A feed goes when its DataFrame object is garbage in the notebook, or with the cluster.

    ``tell(rank, message)`` sends to an agent; ``answers`` are handed in through :meth:`note` by whoever listens.
    """

    def __init__(
        self, spark: Session, endpoints: Sequence[str], token: str, tell: Callable[[int, Message], None]
    ) -> None:
        self._spark, self._endpoints, self._token, self._tell = spark, list(endpoints), token, tell
        self._feeds: dict[tuple[int, FeedPlan], Feed] = {}
        self._answers: dict[str, list[Message]] = {}
        self._changed = threading.Condition()

    def move(self, endpoints: Sequence[str]) -> None:
        """The agents were replaced, and with them went what they held: all is to be fed anew, to ``endpoints``."""
        with self._changed:
            self._endpoints = list(endpoints)
            self._feeds.clear()
            self._answers.clear()
            self._changed.notify_all()

    def find(self, df: Any, plan: FeedPlan) -> Feed | None:
        """The feed of this very DataFrame object with these columns, if it is there."""
        return self._feeds.get((id(df), plan))

    def start(self, df: Any, plan: FeedPlan) -> FeedJobThread:
        """Begin to feed ``df``; the thread's ``result`` gives the :class:`Feed` or raises what went wrong."""
        return FeedJobThread(self, df, plan)

    def note(self, message: FeedOpened | FeedAttached) -> None:
        """Take an agent's answer."""
        with self._changed:
            if message.feed_id in self._answers:
                self._answers[message.feed_id].append(message)
                self._changed.notify_all()

    def feed(self, df: Any, plan: FeedPlan, feed_id: str, tag: str) -> Feed:
        """Open the feed on all agents, send the rows, commit them; on any failure nothing of it is left."""
        world = len(self._endpoints)
        self._answers[feed_id] = []
        try:
            for rank in range(world):
                self._tell(rank, OpenFeed(feed_id, rank, world, plan.schema))
            self._await_answers(feed_id, FeedOpened)
            with job_tag(self._spark, tag):
                report = feed_dataframe(df, plan, feed_id=feed_id, endpoints=self._endpoints, token=self._token)
            return self._commit(df, plan, feed_id, report)
        except BaseException:
            self._release(feed_id)
            raise
        finally:
            self._answers.pop(feed_id, None)

    def _commit(self, df: Any, plan: FeedPlan, feed_id: str, report: FeedReport) -> Feed:
        partitions = [list(partition) for partition in report.partitions]
        for rank in range(len(self._endpoints)):
            self._tell(rank, CommitFeed(feed_id, partitions, report.schema))
        attached = self._await_answers(feed_id, FeedAttached)
        rows = sum(answer.rows for answer in attached)
        if rows != report.rows:
            raise FeedError(
                f"Spark sent {report.rows} rows and the workers hold {rows}: run the cell again to feed anew"
            )
        columns = tuple(map(field_column, decode_schema(report.schema)))
        feed = Feed(feed_id, rows, sum(answer.bytes for answer in attached), report.seconds, columns)
        key = (id(df), plan)
        self._feeds[key] = feed
        weakref.finalize(df, self._forget, key).atexit = False
        return feed

    def _await_answers(self, feed_id: str, kind: type[Any]) -> list[Any]:
        """Wait for one answer of this kind from every agent."""
        world = len(self._endpoints)

        def given() -> list[Any]:
            return [answer for answer in self._answers.get(feed_id, ()) if isinstance(answer, kind)]

        with self._changed:
            ended = self._changed.wait_for(
                lambda: len(given()) >= world or feed_id not in self._answers, ANSWER_TIMEOUT
            )
            if feed_id not in self._answers:
                raise FeedError("the workers were replaced during the feed: run the cell again to feed anew")
            if not ended:
                raise FeedError(
                    f"{world - len(given())} of {world} workers did not answer {kind.__name__} within "
                    f"{ANSWER_TIMEOUT:.0f} s: see %tfos logs, then %tfos stop and start again"
                )
            answers = given()
        if problems := [answer.error for answer in answers if answer.error]:
            raise FeedError(problems[0])
        return answers

    def _forget(self, key: tuple[int, FeedPlan]) -> None:
        if feed := self._feeds.pop(key, None):
            self._release(feed.feed_id)

    def _release(self, feed_id: str) -> None:
        for rank in range(len(self._endpoints)):
            self._tell(rank, ReleaseFeed(feed_id))

    def cancel(self, tag: str) -> None:
        cancel_tag(self._spark, tag)


class FeedJobThread:
    """A feed under way in a thread of its own, so that the notebook's thread can draw, and be interrupted."""

    def __init__(self, store: FeedStore, df: Any, plan: FeedPlan) -> None:
        self.feed_id = uuid4().hex[:12]
        self._store, self._df, self._plan = store, df, plan
        self._tag = f"tfos-feed-{self.feed_id}"
        self._result: Feed | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"tfos-feed-{self.feed_id}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._store.feed(self._df, self._plan, self.feed_id, self._tag)
        except BaseException as error:  # raised again where the result is asked for
            self._error = error
        self._df = None

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout: float) -> bool:
        """True when the feed has ended, well or not, within ``timeout`` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def result(self) -> Feed:
        """The feed, or the error that ended it. Call it when the feed has ended."""
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def cancel(self, timeout: float = 5.0) -> None:
        """Cancel the feed's Spark job and wait for its end."""
        self._store.cancel(self._tag)
        self._thread.join(timeout)
