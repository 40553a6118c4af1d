"""A run's DataFrames on their way to the workers, one after another, followed to their ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from tfos_magic.checkpoints.setting import Setting, earlier_marks, rows_of
from tfos_magic.cluster.runs.attempt import TICK
from tfos_magic.cluster.runs.request import FrameUse, RunRequest
from tfos_magic.cluster.runs.state import FeedState, RunPhase, RunState
from tfos_magic.cluster.startup import SAY_SECONDS
from tfos_magic.cluster.trainer_group import TrainerGroup
from tfos_magic.errors import DataError, FeedError
from tfos_magic.feed.driver.feed_thread import FeedJobThread
from tfos_magic.feed.driver.sources.fed_frame import SpooledFeed, columns_of
from tfos_magic.feed.driver.streaming_query import StreamingSource, as_streaming
from tfos_magic.transport.messages import FeedUse

LOSS_NEWS_SECONDS = 2.0
_ROWS = "rows that Spark has yet to compute"


def feed_all(
    cluster: TrainerGroup,
    frames: Mapping[str, FrameUse],
    state: RunState,
    draw: Callable[[], None],
    before: Mapping[str, Sequence[int]],
) -> dict[str, SpooledFeed]:
    """Bring every DataFrame to the spools, unless it is there; gives the feeds by name.

    ``before`` are the marks of the rows that a run which is to go on had.

    ``state`` tells how far it is; ``draw`` is called as often as that changes, and what it raises cancels the feed.
    """
    cluster.membership.check()
    assert cluster.feeds is not None
    cluster.feeds.begin_run(state.run_id, cluster.feed_world)
    fed: dict[str, SpooledFeed] = {}
    earlier = earlier_marks(frames, before)
    for name, use in frames.items():
        if (streaming := as_streaming(use.frame)) is not None:
            _refuse_parts(cluster, name, "is a stream")
            fed[name] = _await_first_rows(cluster, name, streaming, use, state, draw)
            continue
        if not state.restarts and (notice := cluster.feeds.check_files(use.frame, use.plan, cluster.feed_world)):
            state.notices.append(f"{name}: {notice}")
        known = cluster.feeds.find(use.frame, use.plan, state.run_id, cluster.feed_world)
        seconds = 0.0
        if reused := known is not None:
            fed[name] = known
        else:
            state.phase = RunPhase.FEEDING
            state.wait_for("")
            then = rows_of(earlier[name])
            planned = then.parallelism if then is not None else 0
            job = cluster.feeds.start(use.frame, use.plan, state.run_id, cluster.feed_world, planned)
            fed[name] = _follow(cluster, job, name, state, draw)
            seconds = fed[name].seconds
        feed = fed[name]
        if feed.recomputed and not reused:
            state.notices.append(
                f"{name}: Spark gave {feed.recomputed} when it was fed anew after the loss of a worker, so the weights "
                "will not be those of an undisturbed run. Write the rows to Parquet and feed those."
            )
        if feed.streamed:
            _refuse_parts(cluster, name, "is larger than the disk that the workers may take for feeds (--spool-gb)")
        columns = tuple(map(str, feed.columns))
        if feed.streamed and not reused:
            state.notices.append(
                f"{name} is larger than the disk that the workers may take for feeds (--spool-gb): its rows come from "
                "Spark anew in every epoch."
            )
        state.feeds[name] = FeedState(
            name,
            feed.rows,
            feed.bytes,
            seconds,
            done=True,
            reused=reused,
            columns=columns,
            streamed=feed.streamed,
        )
        draw()
    if not state.restarts:
        state.notices.extend(_changed_rows(before, fed))
    return fed


def _refuse_parts(cluster: TrainerGroup, name: str, what: str) -> None:
    """Refuse what only all workers of a cluster together can read."""
    if cluster.feed_world:
        raise DataError(
            f"DataFrame {name!r} {what}, and cluster.map gives each item all rows: use cluster.run instead."
        )


def _await_first_rows(
    cluster: TrainerGroup,
    name: str,
    frame: StreamingSource,
    use: FrameUse,
    state: RunState,
    draw: Callable[[], None],
) -> SpooledFeed:
    """Start the query of a streaming DataFrame and wait for rows, which tell the shapes of its columns."""
    assert cluster.feeds is not None
    state.phase = RunPhase.FEEDING
    state.wait_for("")
    state.feeds[name] = FeedState(name, streamed=True)
    query = cluster.feeds.streams.start_query(name, frame, use.plan)
    while not query.wait_known(TICK):
        cluster.membership.check()
        cluster.membership.check_agents()
        state.wait_for(cluster.membership.silence(), ago=SAY_SECONDS)
        draw()
    feed = SpooledFeed(f"query-{name}", 0, 0, 0.0, columns_of(query.schema), query.schema)
    state.feeds[name] = FeedState(name, done=True, columns=tuple(map(str, feed.columns)), streamed=True)
    draw()
    return feed


def _changed_rows(before: Mapping[str, Sequence[int]], feeds: Mapping[str, SpooledFeed]) -> list[str]:
    """What to say of DataFrames whose rows are not those with the marks ``before``."""
    notices, earlier = [], earlier_marks(feeds, before)
    for name, feed in feeds.items():
        then, now = rows_of(earlier[name]), rows_of(feed.mark)
        if then is not None and now is not None and not now.is_of(then):
            counts = f"{then.rows:,} rows then, {now.rows:,} now" if then.rows != now.rows else f"{now.rows:,} rows"
            notices.append(
                f"{name}: its rows are not those of the run that goes on ({counts}), so the weights will be those of "
                "neither. For the same weights feed the same rows; without --resume a new run begins."
            )
    return notices


def setting_of(cluster: TrainerGroup, request: RunRequest, feeds: Mapping[str, SpooledFeed]) -> Setting:
    """What the order of the run's rows follows from."""
    marks = {name: feed.mark for name, feed in feeds.items()}
    return Setting(request.strategy, cluster.size, request.batch_size, request.shuffle, marks)


def uses_of(
    cluster: TrainerGroup, request: RunRequest, feeds: Mapping[str, SpooledFeed], seed: int
) -> dict[str, FeedUse]:
    """What the workers need to know of each DataFrame: its feed, or a lease of a streamed one, and how it is read."""
    assert cluster.feeds is not None
    uses: dict[str, FeedUse] = {}
    for name, use in request.frames.items():
        stream = None
        if feeds[name].streamed:
            ranks = request.ranks_of(cluster.size)
            stream = cluster.feeds.streams.lease(name, use.frame, use.plan, feeds[name].schema, ranks)
        uses[name] = FeedUse(
            feeds[name].feed_id,
            request.batch_size,
            selection=use.selection,
            shuffle=request.shuffle,
            seed=seed,
            mark=list(feeds[name].mark),
            stream=stream,
        )
    return uses


def _follow(
    cluster: TrainerGroup, job: FeedJobThread, name: str, state: RunState, draw: Callable[[], None]
) -> SpooledFeed:
    started = moved = time.monotonic()
    rows = 0
    try:
        while not job.wait(TICK):
            cluster.membership.check()
            cluster.membership.check_agents()
            before, rows = rows, sum(worker.beat.feeds.get(job.feed_id, 0) for worker in cluster.workers)
            now = time.monotonic()
            moved = moved if rows == before else now
            state.feeds[name] = FeedState(name, rows, 0, now - started)
            said = cluster.membership.silence() or (_ROWS if now - moved > SAY_SECONDS else "")
            state.wait_for(said, ago=SAY_SECONDS)
            draw()
    except BaseException:
        job.cancel()
        raise
    try:
        return job.result()
    except (DataError, FeedError) as error:
        cluster.settle()  # raises where there is no session any more, which is why then
        if isinstance(error, DataError):
            raise DataError(f"DataFrame {name!r}: {error}") from None
        # A feed to an agent that is lost fails before Spark says that it is.
        cluster.membership.await_loss(LOSS_NEWS_SECONDS)
        raise
