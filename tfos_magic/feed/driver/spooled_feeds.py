"""Which DataFrames lie in the workers' spools: fed once, used by every later cell that names the same DataFrame."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from tfos_magic.columns.columns import FeedPlan
from tfos_magic.errors import FeedError
from tfos_magic.feed.access import FeedAccess
from tfos_magic.feed.driver.answers import Answers
from tfos_magic.feed.driver.feed_job import FeedReport, Overflow, feed_dataframe
from tfos_magic.feed.driver.feed_thread import FeedJobThread
from tfos_magic.feed.driver.feeds_in_use import FeedsInUse
from tfos_magic.feed.driver.sources.fed_frame import SpooledFeed, columns_of, unlike, whole
from tfos_magic.feed.driver.sources.files_read import GONE, files_mark
from tfos_magic.feed.driver.streamed_feeds import StreamedFeeds
from tfos_magic.spark.planning import parallelism_of
from tfos_magic.spark.session import Session, cancel_tag, job_tag, repeats
from tfos_magic.transport.messages import (
    CommitFeed,
    FeedAttached,
    FeedDropped,
    FeedEndpoint,
    FeedOpened,
    FeedRecomputed,
    FeedWanted,
    Message,
    NeedRoom,
    OpenFeed,
    RefuseFeed,
    ReleaseFeed,
    TrainerExited,
)

FeedKey = tuple[int, FeedPlan, int]
"""The DataFrame object's id, its columns, and among how many workers its rows are shared out."""

FeedMessage = FeedOpened | FeedAttached | NeedRoom | FeedWanted | FeedDropped | FeedRecomputed | TrainerExited


class FeedStore:
    """The feeds of one cluster. A feed goes when its DataFrame object is garbage in the notebook, or with the cluster,
    or when the spools are full and it is the one that no run has used for longest.

    A ``world`` of fewer workers than there are has all rows, shared out among so many; the next such group as well. 0
    is all workers.

    ``tell(rank, message)`` sends to an agent; what they say is handed in through :meth:`note` by whoever listens.
    """

    def __init__(
        self,
        spark: Session,
        endpoints: Sequence[FeedEndpoint],
        access: FeedAccess,
        tell: Callable[[int, Message], None],
    ) -> None:
        self._spark, self._endpoints, self.access, self._tell = spark, list(endpoints), access, tell
        self._feeds: dict[FeedKey, SpooledFeed] = {}
        self._lost: dict[FeedKey, SpooledFeed] = {}
        self._turn = threading.Lock()
        self._moves = 0
        self._under_way: set[str] = set()
        self._outdated: set[str] = set()
        self._answers = Answers()
        self.in_use = FeedsInUse()
        self._lock = threading.RLock()
        self.streams = StreamedFeeds(spark, self._answers, access, tell, endpoints)

    def move(self, endpoints: Sequence[FeedEndpoint], replaced: Collection[int]) -> None:
        """The agents of these ranks were replaced, and with them went their shares, which are to be fed again."""
        with self._lock:
            self._endpoints = list(endpoints)
            self._moves += 1
            for key, feed in self._feeds.items():
                if not feed.streamed:
                    self._feeds[key] = replace(feed, missing=feed.missing.union(replaced))
        self._answers.forget()
        self.streams.move(endpoints)

    def begin_run(self, run: str, world: int = 0) -> None:
        """What is found or fed for ``run`` stays until its end. A run of all workers, whose ``world`` is 0, is alone,
        so what is outdated goes now."""
        self.in_use.begin(run)
        with self._lock:
            outdated = set() if world else self._outdated
            self._outdated = self._outdated - outdated
        for feed_id in outdated:
            self._release(feed_id)

    def find(self, df: Any, plan: FeedPlan, run: str, world: int = 0) -> SpooledFeed | None:
        """The feed of this very DataFrame object with these columns, if all of it is there."""
        key = (id(df), plan, world)
        with self._lock:
            if (feed := self._feeds.pop(key, None)) is not None:
                self._feeds[key] = self.in_use.add(run, feed)  # last, as the one that was used last
            return None if feed is None or feed.missing else feed

    def check_files(self, df: Any, plan: FeedPlan, world: int = 0) -> str:
        """Forget the feed of ``df`` where its files were rewritten since; gives what the user should know, or nothing.

        Rows whose files are gone cannot be fed again, so these stay.
        """
        with self._lock:
            feed = self._feeds.get((id(df), plan, world))
        if feed is None or feed.streamed or feed.files in ("", GONE) or (mark := files_mark(df)) in ("", feed.files):
            return ""
        if mark == GONE:
            return "files that it was read from are gone, so the rows that were fed before are used. Read it again."
        self._outdate((id(df), plan, world))
        return "its files were rewritten since it was fed, so it is fed again."

    def release(self, df: Any = None) -> bool:
        """Forget all feeds of ``df``, or of all, where nothing runs; whether there was one."""
        with self._lock:
            keys = [key for key in self._feeds if df is None or key[0] == id(df)]
        for key in keys:
            self._forget(key)
        return bool(keys)

    def start(self, df: Any, plan: FeedPlan, run: str, world: int = 0, parallelism: int = 0) -> FeedJobThread:
        """Begin to feed ``df``, or what is missing of it; the thread's ``result`` gives the :class:`SpooledFeed` or
        raises what went wrong. What another run feeds meanwhile is waited for. An earlier run had it planned for this
        ``parallelism``, if any."""

        def bring(job: FeedJobThread) -> SpooledFeed:
            with self._turn:
                while True:
                    job.check()
                    moves = self._moves
                    try:
                        feed = self.find(df, plan, run, world) or self._bring(df, plan, world, parallelism, job)
                        return self.in_use.add(run, feed)  # before another feed has its turn and wants its room
                    except FeedError:
                        if moves == self._moves:
                            raise  # else another run has replaced agents meanwhile

        return FeedJobThread(bring, partial(cancel_tag, self._spark))

    def _bring(self, df: Any, plan: FeedPlan, world: int, parallelism: int, job: FeedJobThread) -> SpooledFeed:
        key = id(df), plan, world
        if (known := self._feeds.get(key)) is not None:
            job.feed_id = known.feed_id
            if feed := self._mend(df, key, known, job.tag):
                return feed
            self._lost[key] = known
        job.feed_id = uuid4().hex[:12]
        before = self._lost.get(key)
        feed = self._feed(df, key, before.parallelism if before else parallelism, job)
        self._lost.pop(key, None)
        return replace(feed, recomputed=unlike(feed.digests, before.digests)) if before and feed.digests else feed

    def note(self, rank: int, message: FeedMessage) -> None:
        """Take what an agent says about feeds."""
        match message:
            case FeedOpened() | FeedAttached():
                self._answers.note(rank, message)
            case NeedRoom():
                self._make_room(message)
            case FeedWanted() | FeedDropped() | FeedRecomputed():
                self.streams.note(rank, message)
            case TrainerExited():
                self.streams.lose(rank)

    def _feed(self, df: Any, key: FeedKey, parallelism: int, job: FeedJobThread) -> SpooledFeed:
        """Open the feed on all agents, send the rows, commit them; on any failure nothing of it is left.

        A feed that has no room is given back as one that is to be streamed.
        """
        (_, plan, world), feed_id, files = key, job.feed_id, files_mark(df)
        ranks, parallelism = self._ranks(world), parallelism or parallelism_of(self._spark)
        with self._lock:
            self._under_way.add(feed_id)
        try:
            with self._answers.expected(feed_id):
                self._open(feed_id, plan, ranks, world)
                report = self._send(df, key, feed_id, job.tag, ranks if world else (), parallelism)
                copies = len(ranks) // world if world else 1
                feed = whole(feed_id, report, self._commit(feed_id, report, ranks), copies)
        except Overflow as overflow:
            self._release(feed_id)
            feed = SpooledFeed(feed_id, 0, 0, 0.0, columns_of(overflow.schema), overflow.schema)
        except BaseException:
            self._release(feed_id)
            raise
        finally:
            with self._lock:
                self._under_way.discard(feed_id)
        return self._keep(key, df, replace(feed, files=files, parallelism=parallelism))

    def _mend(self, df: Any, key: FeedKey, known: SpooledFeed, tag: str) -> SpooledFeed | None:
        """Send the ranks whose share is missing that share again.

        None, and it is outdated, where that cannot be: where Spark does not vouch that the DataFrame has the same
        rows in the same order again, where its files were rewritten, or there is no room.
        """
        feed = None
        try:
            with suppress(Overflow):
                if repeats(df) and files_mark(df) == known.files:
                    feed = self._mended(df, key, known, tag)
            return feed
        finally:
            if feed is None:
                self._outdate(key)

    def _mended(self, df: Any, key: FeedKey, known: SpooledFeed, tag: str) -> SpooledFeed | None:
        _, plan, world = key
        ranks = sorted(known.missing.intersection(self._ranks(world)))
        with self._answers.expected(known.feed_id):
            self._open(known.feed_id, plan, ranks, world)
            report = self._send(df, key, known.feed_id, tag, ranks, known.parallelism)
            if report.digests != known.digests:
                return None
            self._commit(known.feed_id, report, ranks)
        feed = replace(known, missing=frozenset(), seconds=report.seconds)
        with self._lock:
            self._feeds[key] = feed
        return feed

    def _ranks(self, world: int) -> range:
        """Those that have rows: the ones after the last whole group have none."""
        count = len(self._endpoints)
        return range(count // world * world if world else count)

    def _open(self, feed_id: str, plan: FeedPlan, ranks: Collection[int], world: int) -> None:
        world = world or len(self._endpoints)
        for rank in ranks:
            self._tell(rank, OpenFeed(feed_id, rank % world, world, plan.schema))
        self._answers.await_all(feed_id, FeedOpened, ranks)

    def _send(
        self, df: Any, key: FeedKey, feed_id: str, tag: str, ranks: Sequence[int], parallelism: int
    ) -> FeedReport:
        with job_tag(self._spark, tag):
            return feed_dataframe(
                df,
                key[1],
                feed_id=feed_id,
                endpoints=self._endpoints,
                access=self.access,
                ranks=ranks,
                world=key[2],
                parallelism=parallelism,
            )

    def _commit(self, feed_id: str, report: FeedReport, ranks: Collection[int]) -> list[Any]:
        partitions = [list(partition) for partition in report.partitions]
        for rank in ranks:
            self._tell(rank, CommitFeed(feed_id, partitions, report.schema))
        return self._answers.await_all(feed_id, FeedAttached, ranks)

    def _keep(self, key: FeedKey, df: Any, feed: SpooledFeed) -> SpooledFeed:
        with self._lock:
            self._feeds[key] = feed
        weakref.finalize(df, self._forget, key).atexit = False
        return feed

    def _make_room(self, message: NeedRoom) -> None:
        """Give up the feed that was not used for longest, unless one is going already; refuse where none can go."""
        with self._lock:
            there = {feed.feed_id for feed in self._feeds.values()} | self._under_way | self._outdated
            if not there.issuperset(message.held):
                return
            used = self.in_use.ids()
            idle = (key for key, feed in self._feeds.items() if not feed.streamed and feed.feed_id not in used)
            if (oldest := next(idle, None)) is not None:
                self._forget(oldest)
                return
        for rank in range(len(self._endpoints)):
            self._tell(rank, RefuseFeed(message.feed_id, "the feed is larger than --spool-gb allows"))

    def _forget(self, key: FeedKey) -> None:
        with self._lock:
            feed = self._feeds.pop(key, None)
            self._lost.pop(key, None)
        if feed is not None and not feed.streamed:
            self._release(feed.feed_id)

    def _outdate(self, key: FeedKey) -> None:
        """Forget a feed that is fed anew. Where several runs go on at once, one may be about to read the old one."""
        if not key[2]:
            self._forget(key)
            return
        with self._lock:
            if (feed := self._feeds.pop(key, None)) is not None:
                self._outdated.add(feed.feed_id)

    def _release(self, feed_id: str) -> None:
        for rank in range(len(self._endpoints)):
            self._tell(rank, ReleaseFeed(feed_id))
