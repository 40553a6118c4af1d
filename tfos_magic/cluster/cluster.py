"""TFCluster: a TensorFlow cluster on the executors of a Spark session, and what it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tfos_magic.cluster.map_run import MapRun
from tfos_magic.cluster.netbench.bench import CELL, PAIR_SECONDS, NetBench, WaitPrinter, plan_bench, together
from tfos_magic.cluster.runs.execution import Execution
from tfos_magic.cluster.runs.known_runs import NAMES
from tfos_magic.cluster.runs.request import RETURNED, Observer, whole_number
from tfos_magic.cluster.runs.run import Run, end_runs
from tfos_magic.cluster.runs.submit_options import RunOptions, map_requests, request_of
from tfos_magic.cluster.worker_group import STOP_TIMEOUT, WorkerGroup
from tfos_magic.cluster.workers import ClusterPhase, ClusterStatus
from tfos_magic.errors import ClusterError, UsageError
from tfos_magic.feed.driver.streaming_query import StreamingSource
from tfos_magic.spark import session as sessions
from tfos_magic.spark.local_tables import all_to_spark

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tfos_magic.sweeps.sweep import Sweep


class TFCluster(WorkerGroup):
    """``workers`` TensorFlow workers on the executors of ``spark``, one Spark task each, and ``servers`` parameter
    servers for strategy ``async``, which take a task each as well.

    ``cores`` and ``gpus`` are what Spark reserves for each. One more slot is needed for feeding DataFrames.
    ``driver_host`` and ``control_port`` say where the control socket listens; by default on the address that the
    executors reach, at a free port. With ``via="spark"`` messages go by Spark alone, as they do by themselves where no
    executor reaches that address. Fed rows may take ``spool_gb`` (of 2**30 bytes) of each worker's disk, by default
    half of what is free; a DataFrame larger than that is streamed anew in every epoch. What gives no sign of life for
    ``heartbeat_timeout`` seconds is replaced. ``nccl`` has GPUs sum gradients by TensorFlow's own collectives: whoever
    reaches their port on a worker commands it, and reads and writes files of the executor's user through it.
    With ``most_workers`` it starts with as many workers as Spark has room for, from ``workers`` to so many; a run gets
    more where slots are free later, and goes on with fewer where one is lost and there is no slot for another. With
    dynamic allocation it begins with ``workers``.
    After ``idle_timeout`` seconds without a run it ends by itself, so that others have its slots; 0 keeps it.
    Without ``hold_slots`` the workers leave their Spark tasks once they run, for others to have the slots; one that is
    lost then ends the run.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`.

    The idea of a cluster living in Spark tasks is TensorFlowOnSpark's.
    """

    _room = 0

    def __enter__(self) -> TFCluster:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<TFCluster of {self.size} workers, {self.phase.value}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """As :meth:`status` shows itself."""
        return {**self.status()._repr_mimebundle_(), "text/plain": repr(self)}

    def submit(self, cell: str | Callable[..., Any], **options: Unpack[RunOptions]) -> Run:
        """Run Keras code on every worker, as ``%%tfos_train --detach`` does, and give a handle on it at once.

        It begins when the runs that were submitted before it have ended. ``cell`` is the code's text, whose ``outputs``
        come back by name, or a function, which is called with those of ``names`` and ``frames`` that it takes and whose
        value comes back as ``run.returned``. ``options`` are those of
        :class:`~tfos_magic.cluster.runs.submit_options.RunOptions`.

        Raises :class:`DataError` for a DataFrame that cannot be fed as asked and :class:`UsageError` for options that
        do not fit. :meth:`Run.wait` raises :class:`~tfos_magic.errors.WorkerError` for what the code raised, whose
        ``values`` are the outputs that there were by then, :class:`CaptureError` where some outputs cannot come, with
        the others, :class:`DataError` and :class:`FeedError` from the feed, :class:`WorkerLost` when a worker was lost
        and no restart is left.
        """
        return self._run_of(cell, detached=True, **options).start()

    def run(self, cell: str | Callable[..., Any], **options: Unpack[RunOptions]) -> Any:
        """Run Keras code as :meth:`submit` does, with the same ``options``, and wait for its end.

        Gives the ``outputs`` of rank 0 by name, or what the function returned, and raises what :meth:`Run.wait` raises.
        An interrupt ends the run.
        """
        values = self._run_of(cell, detached=False, **options).execute()
        return values if isinstance(cell, str) else values[RETURNED]

    def map(
        self,
        cell: str | Callable[..., Any],
        items: Iterable[Any],
        *,
        workers_per_item: int = 1,
        **options: Unpack[RunOptions],
    ) -> MapRun:
        """Run Keras code once for each of ``items``, on whichever workers are free, and give a handle at once.

        ``cell`` is a function, whose first argument is the item, or a text, which has it by the name ``item``; all else
        is as in :meth:`submit`. ``workers_per_item`` workers train an item together, by themselves: ``frames`` are fed
        once, all rows to each such group. Every item begins in fresh processes; where those of one are lost, it is run
        again, at most ``max_restarts`` times. It begins when the runs that were submitted before it have ended.

        Raises what :meth:`submit` raises, and :class:`UsageError` where a group is larger than the cluster.
        """
        given = self._taken(options)
        self.check_group("workers_per_item", workers_per_item)
        observer, items = given.pop("observer", None) or Observer(), list(items)
        given["name"] = NAMES.give(given.get("name", "map"))
        requests = map_requests(cell, items, **given)
        return MapRun(self, items, requests, workers_per_item, [observer] * len(items)).start()

    def sweep(
        self,
        cell: str | Callable[..., Any],
        *,
        trials: int = 0,
        metric: str,
        direction: str = "",
        sampler: Any = "tpe",
        pruner: Any = "none",
        storage: Any = None,
        study_name: str = "",
        resume: bool = False,
        workers_per_trial: int = 1,
        fail_fast: bool = False,
        **options: Any,
    ) -> Sweep:
        """Search for the hyper-parameters that ``cell`` asks for by ``tfos.suggest_float`` and its like, by running it
        ``trials`` times on whichever workers are free, and give a handle at once. Optuna chooses, in this process.

        ``metric`` is one of the epochs' metrics, a name that a cell's text sets to a number, or, where a function is
        run, what it returns: a dict that has it, or a number if its epochs have none of that name. ``sampler`` is
        ``tpe``, ``random``, ``grid`` or ``cmaes``, ``pruner`` is ``asha``, ``median`` or ``none``, and both may be
        objects of Optuna's. A ``storage`` keeps the study, and ``resume`` goes on with it until it has ``trials``.
        ``workers_per_trial`` train a trial together. ``frames`` are fed once, all rows to each such group. A trial that
        fails costs no other, unless ``fail_fast`` ends the sweep. ``seed`` seeds the search and each trial. All else is
        as in :meth:`submit`.

        Raises what :meth:`submit` raises, and :class:`UsageError` for what does not fit, and where Optuna is missing.
        The idea of asking and telling a study is Optuna's, that of runs which share what they are fed Ray Tune's.
        """
        from tfos_magic.sweeps.program import sweep_of

        given = self._taken(options)
        self.check_group("workers_per_trial", workers_per_trial)
        given["name"] = NAMES.give(given.get("name", "sweep"))
        search = {"trials": trials, "metric": metric, "direction": direction, "sampler": sampler, "pruner": pruner}
        kept = {"storage": storage, "study_name": study_name, "resume": resume}
        return sweep_of(self, cell, {**search, **kept}, workers_per_trial, fail_fast, given).start()

    def scale(self, workers: int) -> None:
        """Go on with so many ``workers``; those that were there stay. DataFrames are fed again to all.

        A run that goes on has them from its next checkpoint on, which it takes for that: after a step, or, under
        ``local`` and where fed rows are shuffled, at the end of an epoch. Its weights are those of a run of one size
        where the number of workers does not matter to it, as it does to shuffled rows. Raises :class:`ClusterError`
        where Spark has no room for so many, where the cluster has parameter servers and is not idle, and where a map
        goes on; the cluster then stays as it is. The idea of a run that changes size is Horovod's.
        """
        self._check_running()
        workers = whole_number("workers", workers, 1)
        run = next(iter(self.queue.runs), None)
        if run is not None and (self.servers or isinstance(run, MapRun) or not run.request.boundary):
            self._check_idle("scale the cluster")
        self._agents.check_growth(workers)
        self.spec = replace(self.spec, workers=workers, most_workers=0)
        self.wanted = None if run is None else workers
        if run is not None:
            return
        if self.servers:
            self._begin_anew()
        else:
            self.resize(workers)

    def grow(self) -> None:
        """Have the run that goes on take as many workers as Spark has room for, ``most_workers`` at most, and ask for
        that room where Spark makes it. Room that is there twice in a row is none between two stages of another job."""
        run = next(iter(self.queue.runs), None)
        if run is None or isinstance(run, MapRun) or self.wanted is not None or self.size >= self.spec.most_workers:
            return
        before, self._room = self._room, self._largest(self.size + self._agents.free())
        if run.request.boundary and (size := min(before, self._room)) > self.size:
            self.wanted = size
        elif run.request.boundary:
            self._agents.invitation.send((self.spec.most_workers - self.size) * self.spec.cores)

    def _begin_anew(self) -> None:
        made = type(self)(self.spark, **asdict(self.spec))
        super().stop()
        vars(self).update({**vars(made), "queue": self.queue})
        self.start()

    def release(self, df: Any) -> bool:
        """Free the disk that a DataFrame of earlier runs takes on the workers; whether it took any.

        The next run that names it feeds it again. Raises :class:`ClusterError` where a run goes on or waits.
        """
        self._check_running()
        self._check_idle("release the DataFrame")
        return self.feeds is not None and self.feeds.release(df)

    def netbench(self, model: Any = None, seconds: float = PAIR_SECONDS) -> NetBench:
        """Measure bandwidth and latency between the workers, over what their training travels on, encrypted as it is.

        ``model`` is a Keras model, or a number of bytes: how long the sum of such gradients takes over all workers is
        measured as well. A pair of workers takes ``seconds``, all together a minute at most; of many hosts
        :func:`~tfos_magic.training.netbench.plan.plan_rounds` says which pairs are measured. Prints what goes on; an
        interrupt ends it, and the cluster stays.

        Raises :class:`ClusterError` where a run goes on or waits, and :class:`UsageError` for one worker alone and for
        what is no model.
        """
        self._check_running()
        self._check_idle("measure the network")
        hosts = [worker.agent.host for worker in self.workers]
        plan = plan_bench(hosts, model, seconds)
        given: dict[str, Any] = {"names": {"plan": plan}, "outputs": ["found"], "strategy": "none"}
        found = self.run(CELL, name="netbench", observer=WaitPrinter(), **given)["found"]
        return together(found, plan, hosts, self.encrypted, model)

    def stop(self, force: bool = False, timeout: float = STOP_TIMEOUT) -> None:
        """End the runs that go on or wait, and the cluster, as the ``with`` block's end does; by ``force`` nothing is
        waited for, and the run under way fails.

        Waits for Spark to have its slots back. The session and its other jobs are not touched. Stopping twice is
        harmless.
        """
        if force:
            for run in self.queue.runs[1:]:
                run.ask_to_stop()  # else the next one would start another cluster
        else:
            end_runs(self.queue, timeout)
        super().stop(force, timeout)

    def _run_of(
        self, cell: str | Callable[..., Any], *, detached: bool, observer: Observer | None = None, **options: Any
    ) -> Run:
        given = {"name": getattr(cell, "__name__", ""), **self._taken(options)}
        request = request_of(cell, detached=detached, **{**given, "name": NAMES.give(given["name"])})
        return Run(Execution(request, self.size, lambda _: self), self.queue, observer)

    def _taken(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a run that the cluster can take, with tables of this process as DataFrames of its session."""
        self._check_running()
        return {**options, "frames": all_to_spark(options.get("frames"), self.spark)}

    def check_group(self, option: str, workers: int) -> None:
        """Raise :class:`UsageError` where there are no so many workers for a part of the runs."""
        if not 1 <= workers <= self.size:
            raise UsageError(f"{option} is {workers}, and the cluster has {self.size} workers.")

    def _check_running(self) -> None:
        if self.phase is not ClusterPhase.RUNNING:
            why = f" ({self.membership.reason})" if self.membership.reason else ""
            raise ClusterError(f"The cluster accepts no run because it is {self.phase.value}{why}: start() one.")

    def _check_idle(self, then: str) -> None:
        if runs := self.queue.runs:
            raise ClusterError(f"{runs[0].name} is still running: wait for it or stop it, then {then}.")

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
        status = self.membership.status(
            "session stopped" if sessions.is_stopped(self.spark) else sessions.master_of(self.spark)
        )
        first = next(iter(self.queue.runs), None)
        return status.with_busy(first.busy) if first else status

    def logs(self, rank: int | None = None, tail: int = 50) -> dict[int, list[str]]:
        """The last ``tail`` lines that each worker printed, by rank; of one rank where given."""
        with self.membership.lock:
            return {w.rank: list(w.log)[-tail:] for w in self.membership.members if rank is None or w.rank == rank}
