"""Which DataFrames lie in the workers' spools: fed once, used by every later cell that names the same DataFrame."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

from tfos_magic.columns.columns import FeedPlan
from tfos_magic.errors import FeedError
from tfos_magic.feed.driver.answers import Answers
from tfos_magic.feed.driver.feed_job import FeedReport, Overflow, feed_dataframe
from tfos_magic.feed.driver.sources.feed import SpooledFeed
from tfos_magic.feed.driver.sources.feed import columns_of as columns_of
from tfos_magic.feed.driver.sources.files import GONE, files_mark
from tfos_magic.feed.driver.streamed_feeds import StreamedFeeds
from tfos_magic.spark.session import Session, cancel_tag, job_tag, repeats
from tfos_magic.transport.messages import (
    CommitFeed,
    FeedAttached,
    FeedDropped,
    FeedOpened,
    FeedWanted,
    Message,
    NeedRoom,
    OpenFeed,
    RefuseFeed,
    ReleaseFeed,
    TrainerExited,
)

FeedMessage = FeedOpened | FeedAttached | NeedRoom | FeedWanted | FeedDropped | TrainerExited


class FeedStore:
    """The feeds of one cluster. A feed goes when its DataFrame object is garbage in the notebook, or with the cluster,
    or when the spools are full and it is the one that no run has used for longest.

    ``tell(rank, message)`` sends to an agent; what they say is handed in through :meth:`note` by whoever listens.
    """

    def __init__(
        self, spark: Session, endpoints: Sequence[str], token: str, tell: Callable[[int, Message], None]
    ) -> None:
        self._spark, self._endpoints, self._token, self._tell = spark, list(endpoints), token, tell
        self._feeds: dict[tuple[int, FeedPlan], SpooledFeed] = {}
        self._in_use: set[str] = set()
        self._under_way: set[str] = set()
        self._answers = Answers()
        self._lock = threading.RLock()
        self.streams = StreamedFeeds(spark, self._answers, token, tell, endpoints)

    def move(self, endpoints: Sequence[str], replaced: Collection[int]) -> None:
        """The agents of these ranks were replaced, and with them went their shares, which are to be fed again."""
        with self._lock:
            self._endpoints = list(endpoints)
            for key, feed in self._feeds.items():
                if not feed.streamed:
                    self._feeds[key] = replace(feed, missing=feed.missing.union(replaced))
        self._answers.forget()
        self.streams.move(endpoints)

    def begin_run(self) -> None:
        """What is found or fed from here on is used together, so that none of it may go."""
        with self._lock:
            self._in_use.clear()

    def find(self, df: Any, plan: FeedPlan) -> SpooledFeed | None:
        """The feed of this very DataFrame object with these columns, if all of it is there."""
        key = (id(df), plan)
        with self._lock:
            feed = self._feeds.pop(key, None)
            if feed is not None:
                self._feeds[key] = feed  # last, as the one that was used last
                self._in_use.add(feed.feed_id)
            return None if feed is None or feed.missing else feed

    def check_files(self, df: Any, plan: FeedPlan) -> str:
        """Forget the feed of ``df`` where its files were rewritten since; gives what the user should know, or nothing.

        Rows whose files are gone cannot be fed again, so these stay.
        """
        with self._lock:
            feed = self._feeds.get((id(df), plan))
        if feed is None or feed.streamed or feed.files in ("", GONE) or (mark := files_mark(df)) in ("", feed.files):
            return ""
        if mark == GONE:
            return "files that it was read from are gone, so the rows are those that were fed before. Read it anew."
        self._forget((id(df), plan))
        return "its files were rewritten since it was fed, so it is fed anew."

    def start(self, df: Any, plan: FeedPlan) -> FeedJobThread:
        """Begin to feed ``df``, or what is missing of it; the thread's ``result`` gives the :class:`SpooledFeed` or
        raises what went wrong."""
        with self._lock:
            known = self._feeds.get((id(df), plan))
        return FeedJobThread(self, df, plan, known)

    def note(self, rank: int, message: FeedMessage) -> None:
        """Take what an agent says about feeds."""
        match message:
            case FeedOpened() | FeedAttached():
                self._answers.note(rank, message)
            case NeedRoom():
                self._make_room(message)
            case FeedWanted() | FeedDropped():
                self.streams.note(rank, message)
            case TrainerExited():
                self.streams.lose(rank)

    def feed(self, df: Any, plan: FeedPlan, feed_id: str, tag: str) -> SpooledFeed:
        """Open the feed on all agents, send the rows, commit them; on any failure nothing of it is left.

        A feed that has no room is given back as one that is to be streamed.
        """
        ranks, files = range(len(self._endpoints)), files_mark(df)
        with self._lock:
            self._under_way.add(feed_id)
        try:
            with self._answers.expected(feed_id):
                self._open(feed_id, plan, ranks)
                report = self._send(df, plan, feed_id, tag)
                feed = _whole(feed_id, report, self._commit(feed_id, report, ranks))
        except Overflow as overflow:
            self._release(feed_id)
            feed = SpooledFeed(feed_id, 0, 0, 0.0, columns_of(overflow.schema), overflow.schema)
        except BaseException:
            self._release(feed_id)
            raise
        finally:
            with self._lock:
                self._under_way.discard(feed_id)
        return self._keep(df, plan, replace(feed, files=files))

    def mend(self, df: Any, plan: FeedPlan, known: SpooledFeed, tag: str) -> SpooledFeed | None:
        """Send the ranks whose share is missing that share again.

        None, and all of it forgotten, where that cannot be: where Spark does not vouch that the DataFrame has the same
        rows in the same order again, where its files were rewritten, or there is no room.
        """
        feed = None
        try:
            with suppress(Overflow):
                feed = self._mended(df, plan, known, tag) if repeats(df) and files_mark(df) == known.files else None
            return feed
        finally:
            if feed is None:
                self._forget((id(df), plan))

    def _mended(self, df: Any, plan: FeedPlan, known: SpooledFeed, tag: str) -> SpooledFeed | None:
        ranks = sorted(known.missing)
        with self._answers.expected(known.feed_id):
            self._open(known.feed_id, plan, ranks)
            report = self._send(df, plan, known.feed_id, tag, ranks)
            if _sizes(report) != known.sizes:
                return None
            self._commit(known.feed_id, report, ranks)
        feed = replace(known, missing=frozenset(), seconds=report.seconds)
        with self._lock:
            self._feeds[(id(df), plan)] = feed
        return feed

    def _open(self, feed_id: str, plan: FeedPlan, ranks: Collection[int]) -> None:
        for rank in ranks:
            self._tell(rank, OpenFeed(feed_id, rank, len(self._endpoints), plan.schema))
        self._answers.await_all(feed_id, FeedOpened, ranks)

    def _send(self, df: Any, plan: FeedPlan, feed_id: str, tag: str, ranks: Sequence[int] = ()) -> FeedReport:
        with job_tag(self._spark, tag):
            return feed_dataframe(df, plan, feed_id=feed_id, endpoints=self._endpoints, token=self._token, ranks=ranks)

    def _commit(self, feed_id: str, report: FeedReport, ranks: Collection[int]) -> list[Any]:
        partitions = [list(partition) for partition in report.partitions]
        for rank in ranks:
            self._tell(rank, CommitFeed(feed_id, partitions, report.schema))
        return self._answers.await_all(feed_id, FeedAttached, ranks)

    def _keep(self, df: Any, plan: FeedPlan, feed: SpooledFeed) -> SpooledFeed:
        key = (id(df), plan)
        with self._lock:
            self._feeds[key] = feed
            self._in_use.add(feed.feed_id)
        weakref.finalize(df, self._forget, key).atexit = False
        return feed

    def _make_room(self, message: NeedRoom) -> None:
        """Give up the feed that was not used for longest, unless one is going already; refuse where none can go."""
        with self._lock:
            there = {feed.feed_id for feed in self._feeds.values()} | self._under_way
            if not there.issuperset(message.held):
                return
            idle = (key for key, feed in self._feeds.items() if not feed.streamed and feed.feed_id not in self._in_use)
            if (oldest := next(idle, None)) is not None:
                self._forget(oldest)
                return
        for rank in range(len(self._endpoints)):
            self._tell(rank, RefuseFeed(message.feed_id, "the feed is larger than --spool-gb allows"))

    def _forget(self, key: tuple[int, FeedPlan]) -> None:
        with self._lock:
            feed = self._feeds.pop(key, None)
        if feed is not None and not feed.streamed:
            self._release(feed.feed_id)

    def _release(self, feed_id: str) -> None:
        for rank in range(len(self._endpoints)):
            self._tell(rank, ReleaseFeed(feed_id))

    def cancel(self, tag: str) -> None:
        cancel_tag(self._spark, tag)


def _whole(feed_id: str, report: FeedReport, attached: list[Any]) -> SpooledFeed:
    """The feed that all workers hold their shares of."""
    rows = sum(answer.rows for answer in attached)
    if rows != report.rows:
        raise FeedError(f"Spark sent {report.rows} rows and the workers hold {rows}: run the cell again to feed anew")
    size = sum(answer.bytes for answer in attached)
    return SpooledFeed(
        feed_id, rows, size, report.seconds, columns_of(report.schema), sizes=_sizes(report), digest=report.digest
    )


def _sizes(report: FeedReport) -> tuple[tuple[int, int], ...]:
    return tuple((partition, rows) for partition, _, rows in report.partitions)


class FeedJobThread:
    """A feed under way in a thread of its own, so that the notebook's thread can draw, and be interrupted."""

    def __init__(self, store: FeedStore, df: Any, plan: FeedPlan, known: SpooledFeed | None = None) -> None:
        self.feed_id = known.feed_id if known is not None else uuid4().hex[:12]
        self._store, self._df, self._plan, self._known = store, df, plan, known
        self._tag = f"tfos-feed-{uuid4().hex[:12]}"
        self._result: SpooledFeed | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=self._tag, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._known is not None:
                self._result = self._store.mend(self._df, self._plan, self._known, self._tag)
                self.feed_id = uuid4().hex[:12] if self._result is None else self.feed_id
            if self._result is None:
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

    def result(self) -> SpooledFeed:
        """The feed, or the error that ended it. Call it when the feed has ended."""
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def cancel(self, timeout: float = 5.0) -> None:
        """Cancel the feed's Spark job and wait for its end."""
        self._store.cancel(self._tag)
        self._thread.join(timeout)
