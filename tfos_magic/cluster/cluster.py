"""TFCluster: a TensorFlow cluster on the executors of a Spark session, and what it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfos_magic.cluster.runs.request import Observer, RunRequest, frame_use
from tfos_magic.cluster.runs.run import Run
from tfos_magic.cluster.worker_group import WorkerGroup
from tfos_magic.cluster.workers import ClusterStatus
from tfos_magic.columns.missing import NOTHING_MISSING, Missing
from tfos_magic.feed.driver.streaming_query import StreamingSource
from tfos_magic.spark import session as sessions
from tfos_magic.transport.messages import StrategyOptions


class TFCluster(WorkerGroup):
    """``workers`` TensorFlow workers on the executors of ``spark``, one Spark task each, and ``servers`` parameter
    servers for strategy ``async``, which take a task each as well.

    ``cores`` and ``gpus`` are what Spark reserves for each. One more slot is needed for feeding DataFrames.
    ``driver_host`` and ``control_port`` say where the control socket listens; by default on the address that the
    executors reach, at a free port. Fed rows may take ``spool_gb`` (of 2**30 bytes) of each worker's disk, by default
    half of what is free; a DataFrame larger than that is streamed anew in every epoch. What gives no sign of life for
    ``heartbeat_timeout`` seconds is replaced.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`.

    The idea of a cluster living in Spark tasks is TensorFlowOnSpark's.
    """

    def __enter__(self) -> TFCluster:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def run(
        self,
        source: str,
        *,
        names: Mapping[str, Any] | None = None,
        frames: Mapping[str, Any] | None = None,
        features: Sequence[str] | None = None,
        label: str | None = None,
        missing: Missing = NOTHING_MISSING,
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int | None = None,
        outputs: Sequence[str] = (),
        strategy: str = "sync",
        options: Mapping[str, Any] | None = None,
        log_dir: str = "",
        checkpoint_dir: str = "",
        checkpoint_every: int = 0,
        keep_checkpoints: int = 3,
        resume: bool = False,
        max_restarts: int = 2,
        observer: Any = None,
    ) -> dict[str, Any]:
        """Run Keras code on every worker, as ``%%tfos_train`` does, and give the ``outputs`` of rank 0 by name.

        ``names`` are values the code may use; ``frames`` are DataFrames, each of which it gets under its name as this
        worker's ``tf.data.Dataset``, in global batches of ``batch_size`` rows: ``(features, label)`` where ``label``
        names a column, else a dict of columns. ``missing`` says what nulls and short arrays become, as in
        ``Missing.of(fill={"age": 0}, pad=0)``. ``options`` are those of the strategy, by the names of
        :class:`~tfos_magic.transport.messages.StrategyOptions`. Scalars for TensorBoard go to ``log_dir``. Shuffle and
        seed, strategy, checkpoints and restarts are those of :class:`~tfos_magic.cluster.runs.request.RunRequest`.
        ``observer`` watches: its ``update(state)`` and ``output(text, stream)`` are called from this thread.

        Raises :class:`~tfos_magic.errors.WorkerError` for what the code raised, whose ``values`` are the outputs that
        there were by then, :class:`CaptureError` where some outputs cannot come, with the others, :class:`DataError`
        and :class:`FeedError` from the feed, :class:`WorkerLost` when a worker was lost and no restart is left.
        """
        request = RunRequest(
            source=source,
            names=names or {},
            frames={name: frame_use(name, frame, features, label, missing) for name, frame in (frames or {}).items()},
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            outputs=outputs,
            strategy=strategy,
            options=StrategyOptions.of(strategy, options or {}),
            log_dir=log_dir,
            checkpoint_dir=checkpoint_dir,
            checkpoint_every=checkpoint_every,
            keep_checkpoints=keep_checkpoints,
            resume=resume,
            max_restarts=max_restarts,
        )
        return Run(request, self.size, lambda: self).execute(observer or Observer())

    @staticmethod
    def feed_stream(df: Any, **query: Any) -> StreamingSource:
        """Say how the query over a streaming DataFrame is started that feeds it to a run, as one of its ``frames``.

        ``query`` is ``trigger``, a dict of what ``DataStreamWriter.trigger`` takes, and ``options``, a dict of the
        writer's options, such as ``checkpointLocation``. Without both, ``frames`` may hold ``df`` itself. The rows of
        its micro-batches, in their order, are one iteration that lasts until the query ends; global batches run across
        micro-batches. An interrupt of the run stops the query. A run that is begun anew, a worker having been lost,
        starts another query, which goes on where ``checkpointLocation`` says, else from the beginning of the source.
        """
        return StreamingSource(df, **query)

    def status(self) -> ClusterStatus:
        """The cluster and its workers as they are now."""
        return self.membership.status(
            "session stopped" if sessions.is_stopped(self.spark) else sessions.master_of(self.spark)
        )

    def logs(self, rank: int | None = None, tail: int = 50) -> dict[int, list[str]]:
        """The last ``tail`` lines that each worker printed, by rank; of one rank where given."""
        with self.membership.lock:
            return {w.rank: list(w.log)[-tail:] for w in self.membership.members if rank is None or w.rank == rank}
