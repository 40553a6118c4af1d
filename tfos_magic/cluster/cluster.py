"""TFCluster: a TensorFlow cluster on the executors of a Spark session, from start to stop."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfos_magic.cluster import session as sessions
from tfos_magic.cluster.control import ControlServer
from tfos_magic.cluster.feeds import FeedStore
from tfos_magic.cluster.launch import AgentJob, with_remedy
from tfos_magic.cluster.lifecycle import close_at_exit, forget
from tfos_magic.cluster.request import Ignore, RunRequest, frame_use
from tfos_magic.cluster.roster import Roster
from tfos_magic.cluster.run import Run
from tfos_magic.cluster.slots import await_slots
from tfos_magic.cluster.workers import ClusterPhase, ClusterStatus, Worker, status_of
from tfos_magic.errors import ClusterError
from tfos_magic.node.config import HEARTBEAT_TIMEOUT, AgentConfig
from tfos_magic.protocol import (
    FeedAttached,
    FeedOpened,
    Message,
    Shutdown,
    StartTrainer,
)

log = logging.getLogger("tfos_magic.cluster")

EXECUTOR_PATIENCE = 15.0
STOP_TIMEOUT = 10.0
QUICK_STOP_TIMEOUT = 1.5


class TFCluster:
    """``workers`` TensorFlow workers on the executors of ``spark``, one Spark task each.

    ``cores`` and ``gpus`` are what Spark reserves for each. One more slot is needed for feeding DataFrames.
    ``driver_host`` and ``control_port`` say where the control socket listens; by default on the address that the
    executors reach, at a free port. What gives no sign of life for ``heartbeat_timeout`` seconds is replaced.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`.

    The idea of a cluster living in Spark tasks is TensorFlowOnSpark's.
    """

    def __init__(
        self,
        spark: Any = None,
        *,
        workers: int = 2,
        cores: int = 1,
        gpus: int = 0,
        start_timeout: float = 120.0,
        driver_host: str = "",
        control_port: int = 0,
        spool_dir: str | None = None,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
    ) -> None:
        if workers < 1 or cores < 1 or gpus < 0:
            raise ClusterError("A cluster needs at least 1 worker with at least 1 core: check -n, --cores and --gpus.")
        self.spark = spark or sessions.make_local_session(workers * cores + 1)
        self.size = workers
        self.roster = Roster(workers, heartbeat_timeout)
        self._cores, self._gpus, self._start_timeout = cores, gpus, start_timeout
        self._address = (driver_host, control_port)
        self._spool_dir = spool_dir
        self._token = secrets.token_urlsafe(32)
        self._listener: Callable[[Message], None] | None = None
        self._control: ControlServer | None = None
        self._job: AgentJob | None = None
        self.feeds: FeedStore | None = None

    def __enter__(self) -> TFCluster:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self, wait_for_trainers: bool = True) -> TFCluster:
        """Start agents and trainers. Returns when all are there; with ``wait_for_trainers=False`` when the agents are.

        Raises :class:`StartTimeout` naming what was missing, :class:`ExecutorError` when an executor cannot run a
        trainer, :class:`ClusterError` for anything else. After a failed start nothing is left running.
        """
        deadline = time.monotonic() + self._start_timeout
        sessions.refuse_dynamic_allocation(self.spark)
        await_slots(self.spark, self.size, self._cores, min(deadline, time.monotonic() + EXECUTOR_PATIENCE))
        try:
            self._launch()
            self.roster.await_agents(deadline - time.monotonic(), self.endpoint)
            endpoints = [worker.agent.feed_uri for worker in self.workers]
            self.feeds = FeedStore(self.spark, endpoints, self._token, self.tell)
            self.spawn_trainers()
            if wait_for_trainers:
                self.wait_ready(deadline - time.monotonic())
        except BaseException as error:
            self.roster.fail(str(error))
            self._end(force=True, timeout=STOP_TIMEOUT)
            raise
        return self

    def _launch(self) -> None:
        host, port = self._address
        self._control = ControlServer(host or sessions.driver_address(self.spark), port, self._on_message)
        close_at_exit(self)
        self._start_job()

    def _start_job(self) -> None:
        assert self._control is not None
        keys = self._control.keys
        config = AgentConfig(
            self._control.endpoint,
            keys.server_public,
            keys.public,
            keys.secret,
            self._token,
            self._spool_dir,
            heartbeat_timeout=self.roster.heartbeat_timeout,
        )
        self._job = AgentJob(
            self.spark, self.size, cores=self._cores, gpus=self._gpus, config=config, on_end=self._on_job_end
        )
        self._control.forget(self.roster.gather(self._job.tag))
        self._job.start()

    def revive(self) -> None:
        """Replace all agents by those of a new Spark job, some having been lost; what they held is to be fed anew.

        Returns while the new trainers load. Raises :class:`StartTimeout` when Spark has no room for the agents.
        """
        assert self._job is not None
        assert self.feeds is not None
        deadline = time.monotonic() + self._start_timeout
        self._cancel_job()
        await_slots(self.spark, self.size, self._cores, deadline, patient=True)
        try:
            self._start_job()
            self.roster.await_agents(deadline - time.monotonic(), self.endpoint)
        except BaseException:
            self._job.cancel()
            raise
        self.feeds.move([worker.agent.feed_uri for worker in self.workers])
        self.spawn_trainers()

    def _cancel_job(self) -> None:
        assert self._job is not None
        self._job.cancel()
        if not self._job.wait(STOP_TIMEOUT):
            log.warning("the workers' Spark job did not end within %.0f s of its cancellation", STOP_TIMEOUT)

    @property
    def endpoint(self) -> str:
        """Where agents dial in, such as ``tcp://127.0.0.1:40123``; empty when the cluster has ended."""
        return self._control.endpoint if self._control else ""

    @property
    def server_key(self) -> bytes:
        """The public half of the control socket's key, by which an agent knows that it talks to this kernel."""
        return self._control.keys.server_public if self._control else b""

    def spawn_trainers(self) -> None:
        """Begin a new generation: fresh trainer processes, TensorFlow's cluster formed anew."""
        generation = self.roster.begin_generation()
        addresses = [worker.address for worker in self.workers]
        for worker in self.workers:
            message = StartTrainer(
                generation=generation,
                rank=worker.rank,
                addresses=addresses,
                local_rank=worker.local_rank,
                local_size=worker.local_size,
                sys_path=[os.path.abspath(path or os.getcwd()) for path in sys.path],
                timeout=self._start_timeout,
            )
            self.tell(worker.rank, message)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until every trainer has TensorFlow loaded; what was lost is started anew first."""
        self.roster.check()
        if self.roster.lost:
            self.revive()
        if self.roster.stale:
            self.spawn_trainers()
        self.roster.await_trainers(self._start_timeout if timeout is None else timeout)

    @property
    def phase(self) -> ClusterPhase:
        return self.roster.phase

    @property
    def workers(self) -> list[Worker]:
        """The workers by rank; empty until all agents are there."""
        return self.roster.workers

    @property
    def ready(self) -> bool:
        """True when a cell can run at once."""
        return self.roster.ready

    def tell(self, rank: int, message: Message) -> None:
        """Send a command to a rank's agent; nothing happens when the cluster has ended."""
        if self._control is not None:
            self._control.send(self.workers[rank].peer, message)

    def listen(self, listener: Callable[[Message], None] | None) -> None:
        """Set who hears the workers' messages, in the control thread; one run at a time."""
        self._listener = listener

    def _on_message(self, peer: bytes, message: Message) -> None:
        worker = self.roster.note(peer, message)
        if self.roster.stray(peer):
            self._dismiss(peer)
            return
        if worker is None:
            return
        if isinstance(message, (FeedOpened, FeedAttached)) and self.feeds is not None:
            self.feeds.note(message)
        if listener := self._listener:
            listener(message)

    def _dismiss(self, peer: bytes) -> None:
        if self._control is not None:
            self._control.send(peer, Shutdown())

    def _on_job_end(self, tag: str, reason: str) -> None:
        if tag != self.roster.job:
            return
        if "SparkContext was shut down" in reason or sessions.is_stopped(self.spark):
            self.roster.fail(f"The session of the workers' Spark job has ended: {reason}. Make a new one.")
        elif self.roster.gathering:
            self.roster.fail(f"The workers could not start: {with_remedy(reason)}")
        else:
            self.roster.lose(f"their Spark job ended: {reason}")

    def run(
        self,
        source: str,
        *,
        names: Mapping[str, Any] | None = None,
        frames: Mapping[str, Any] | None = None,
        features: Sequence[str] | None = None,
        label: str | None = None,
        batch_size: int = 32,
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
        names a column, else a dict of columns. Scalars for TensorBoard go to ``log_dir``. Strategy, checkpoints and
        restarts are those of :class:`~tfos_magic.cluster.request.RunRequest`. ``observer`` watches: its
        ``update(state)`` and ``output(text, stream)`` are called from this thread.

        Raises :class:`~tfos_magic.errors.WorkerError` for what the code raised, :class:`DataError` and
        :class:`FeedError` from the feed, :class:`WorkerLost` when a worker was lost and no restart is left.
        """
        request = RunRequest(
            source=source,
            names=names or {},
            frames={name: frame_use(name, frame, features, label) for name, frame in (frames or {}).items()},
            batch_size=batch_size,
            outputs=outputs,
            strategy=strategy,
            options=options or {},
            log_dir=log_dir,
            checkpoint_dir=checkpoint_dir,
            checkpoint_every=checkpoint_every,
            keep_checkpoints=keep_checkpoints,
            resume=resume,
            max_restarts=max_restarts,
        )
        return Run(request, self.size, lambda: self).execute(observer or Ignore())

    def stop(self, force: bool = False, timeout: float = STOP_TIMEOUT) -> None:
        """End trainers, agents and spools. Waits for Spark to have its slots back. ``force`` cancels without asking.

        The session and its other jobs are not touched. Stopping twice is harmless.
        """
        self.roster.end()
        self._end(force, timeout)

    def close_quickly(self) -> None:
        """What is done at the kernel's exit: ask the agents to end, in less than two seconds."""
        self.roster.end()
        self._end(force=False, timeout=QUICK_STOP_TIMEOUT, cancel=False)

    def _end(self, force: bool, timeout: float, cancel: bool = True) -> None:
        control, self._control = self._control, None
        if control is None:
            return
        forget(self)
        if not force:
            for peer in self.roster.peers:
                control.send(peer, Shutdown())
        if self._job is not None and (force or not self._job.wait(timeout)) and cancel:
            self._cancel_job()
        control.close()

    def status(self) -> ClusterStatus:
        """The cluster and its workers as they are now."""
        with self.roster.lock:
            first = next((worker.ready for worker in self.workers if worker.ready), None)
            return ClusterStatus(
                phase=self.phase.value,
                master=sessions.master_of(self.spark) if not sessions.is_stopped(self.spark) else "session stopped",
                generation=self.roster.generation,
                workers=tuple(status_of(worker) for worker in self.workers),
                tensorflow=first.versions.get("tensorflow", "") if first else "",
                keras=first.versions.get("keras", "") if first else "",
                reason=self.roster.reason if self.phase is ClusterPhase.FAILED else self.roster.lost,
            )

    def logs(self, rank: int | None = None, tail: int = 50) -> dict[int, list[str]]:
        """The last ``tail`` lines that each worker printed, by rank; of one rank where given."""
        with self.roster.lock:
            return {w.rank: list(w.log)[-tail:] for w in self.workers if rank is None or w.rank == rank}
