"""What lives as long as the kernel: the cluster, TensorBoard and the known runs. One object, closed at the end."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tfos_magic.cluster.cluster import TFCluster
from tfos_magic.cluster.lifecycle import close_at_exit
from tfos_magic.cluster.runs.execution import Execution
from tfos_magic.cluster.runs.known_runs import KnownRuns
from tfos_magic.cluster.runs.request import RunRequest
from tfos_magic.cluster.runs.run import Run
from tfos_magic.cluster.runs.state import FeedState
from tfos_magic.cluster.shared import SharedCluster
from tfos_magic.cluster.startup import Waits
from tfos_magic.cluster.workers import ClusterSpec
from tfos_magic.errors import UsageError
from tfos_magic.notebook.config import TFOS
from tfos_magic.notebook.signals import interruptible
from tfos_magic.notebook.strategy_choice import AT_START, ignored_options, servers_for
from tfos_magic.notebook.views.view import View
from tfos_magic.processes.temporary_folder import LateFolder
from tfos_magic.spark.connect.reachability import check_server
from tfos_magic.spark.session import end_progress_bar, is_stopped, make_local_session
from tfos_magic.tensorboard.log_folders import PrivateLogs, run_folder
from tfos_magic.tensorboard.server_process import Result, TensorBoards
from tfos_magic.tfrecord import register_tfrecord

ENCRYPT: dict[str | None, Any] = {"on": True, "off": False, "auto": "auto"}


class Runtime:
    """The notebook's side of everything that was started for it."""

    def __init__(self, namespace: MutableMapping[str, Any], config: TFOS, shared: SharedCluster | None = None) -> None:
        self.namespace, self.config = namespace, config
        self.shared = shared or SharedCluster()
        self.boards, self.logs = TensorBoards(), PrivateLogs()
        self.files = LateFolder("tfos-files-")
        self.known = KnownRuns(self.shared.queue)
        self._session: Any = None
        self.last_run: Run | None = None
        self.known.on_new(self._note)
        config.observe(self._warn_of_setting, names=[*config.traits(at_start=True)])
        close_at_exit(self)

    def known_session(self) -> Any:
        """``spark`` in the notebook, else the active session, else None."""
        spark = self.namespace.get("spark")
        if _is_session(spark):
            return spark
        module = sys.modules.get("pyspark.sql")
        with suppress(Exception):  # of a Java process that has ended
            return module.SparkSession.getActiveSession() if module else None
        return None

    def session(self, slots: int) -> Any:
        """The known session, else a local one with ``slots``, put in ``spark``."""
        spark = self.known_session()
        if spark is None:
            print("There is no Spark session yet: a local one is being started, which takes some seconds.", flush=True)
            with interruptible():  # PySpark's own handler of interrupts, which would end the workers, does not stay
                spark = self.namespace["spark"] = make_local_session(slots)
            self.add_formats()
        return spark

    def session_for(self, args: Any) -> Callable[[], Any]:
        """Gives a session with room for the cluster that ``args`` ask for."""
        return lambda: self.session(self.requested_cluster(args).slots)

    def note_session(self, *_: Any) -> None:
        """After a cell: a session that it has made has our formats in the next one."""
        spark = self.namespace.get("spark")
        if spark is not self._session and _is_session(spark):
            self.add_formats()

    def add_formats(self) -> None:
        """Make TFRecord a format of the known session, if there is one; a session that refuses is told, no more."""
        spark = self._session = self.known_session()
        if spark is None:
            return
        try:
            check_server(spark, Waits())
            register_tfrecord(spark)
        except Exception as error:  # of Spark, of a Connect server, or of the way to it: no cell needs the format yet
            print(f"format('tfrecord') is not there: {error}. tfos_magic.register_tfrecord(spark) tries again.")

    @property
    def cluster(self) -> TFCluster | None:
        """The cluster of the last run, whatever has become of it."""
        return self.shared.cluster

    @property
    def running(self) -> bool:
        """True when there is a cluster, and its session, that can take a cell."""
        return self.shared.running

    @property
    def fed(self) -> list[FeedState]:
        """The DataFrames that the last run brought to the workers, or found there."""
        return [feed for feed in self.last_run.state.feeds.values() if feed.done] if self.last_run else []

    def start(self, args: Any, run_id: str = "", *, wait_for_trainers: bool = True) -> TFCluster:
        """The running cluster, or a new one as ``args`` and the defaults say; one of another size ends first.

        Raises :class:`ClusterError` where another run than ``run_id`` has its workers.
        """
        with interruptible():
            return self.shared.ensure(
                partial(self._make, args),
                workers=self._wanted(args.workers),
                servers=servers_for(args, self.config),
                run_id=run_id,
                wait_for_trainers=wait_for_trainers,
            )

    def ignored(self, args: Any) -> list[str]:
        """A warning, if there is cause, of options in ``args`` that the running cluster, which a run takes, ignores."""
        cluster = self.cluster
        if cluster is None or not self.shared.suits(self._wanted(args.workers), servers_for(args, self.config)):
            return []
        text = ignored_options(args, cluster.spec, cluster.encrypted)
        return [text] if text else []

    def _warn_of_setting(self, change: Any) -> None:
        """Say that a default that was set anew is for the next cluster, where one runs that has another value."""
        name, cluster = change["name"], self.cluster
        if cluster is None or not self.running:
            return
        has = cluster.size if name == "workers" else getattr(cluster.spec, "servers" if name == "ps" else name)
        if (change["new"] or None) != (has or None):
            print(f"note: The running cluster ignores TFOS.{name} = {change['new']!r}. {AT_START}")

    def _wanted(self, workers: int | None) -> int | None:
        """How many workers a cluster must have to be taken; None is any number: the one that there is has enough."""
        size = self.cluster.size if self.cluster is not None and self.running else 0
        return None if workers is not None and workers <= size <= getattr(workers, "most", 0) else workers

    def _make(self, args: Any) -> TFCluster:
        requested_cluster = self.requested_cluster(args)
        session = self.session(requested_cluster.slots)
        if end_progress_bar(session):
            print("Spark's progress bar is off in this session: it would write into cells for as long as workers live.")
        return TFCluster(session, **dataclasses.asdict(requested_cluster))

    def requested_cluster(self, args: Any) -> ClusterSpec:
        """The cluster that ``args`` and the defaults ask for."""
        servers = servers_for(args, self.config)
        return ClusterSpec(
            workers=self.size_for(args),
            servers=self.config.ps if servers is None else servers,
            cores=args.cores or self.config.cores,
            driver_host=self.config.driver_host,
            control_port=self.config.control_port,
            spool_dir=self.config.spool_dir or None,
            spool_gb=self.config.spool_gb if args.spool_gb is None else args.spool_gb,
            gpus=self.config.gpus if args.gpus is None else args.gpus,
            start_timeout=args.start_timeout or self.config.start_timeout,
            heartbeat_timeout=self.config.heartbeat_timeout,
            idle_timeout=self.config.idle_timeout if args.idle_timeout is None else args.idle_timeout,
            most_workers=getattr(args.workers, "most", 0),
            nccl=self.config.nccl,
            via=args.via or self.config.via,
            encrypt=ENCRYPT.get(args.encrypt, self.config.encrypt),
        )

    def size_for(self, args: Any) -> int:
        """How many workers a run with these options will have."""
        return self.shared.size_for(args.workers, self.config.workers)

    def run(self, request: RunRequest, args: Any, view: View) -> dict[str, Any]:
        """Execute a request under ``view`` and give the names that came back."""
        run = self._new_run(request, args, view)
        with interruptible():
            return run.execute()

    def detach(self, request: RunRequest, args: Any, view: View) -> Run:
        """Execute a request under ``view`` in a thread of its own."""
        self.session_for(args)()
        run = self._new_run(request, args, view)
        view.detach(run.ask_to_stop)
        return run.start()

    @property
    def detached(self) -> list[Run]:
        """The detached runs that have not ended, the newest first."""
        return [run for run in reversed(self.shared.queue.runs) if run.request.detached]

    def warnings_for(self, names: Iterable[str]) -> list[str]:
        """What to know of values that go along with a run and that runs before it are still to change."""
        waiting = [(run.name, set(run.request.outputs).intersection(names)) for run in self.detached]
        return [
            f"{', '.join(sorted(asked))} goes along as it is now. {name}, which has not ended, brings it back too: "
            "wait for that run first where this one is to go on from it."
            for name, asked in waiting
            if asked
        ]

    def _new_run(self, request: RunRequest, args: Any, view: View) -> Run:
        connect = partial(self.start, args, wait_for_trainers=False)
        follow = None if request.alone else self._mlflow_log(args.mlflow)
        run = Run(Execution(request, self.size_for(args), connect), self.shared.queue, view)
        if follow is not None:
            with self.shared.queue.left_on_error(run):
                follow(run)
        return run

    def _note(self, run: Run) -> None:
        self.last_run = run

    def _mlflow_log(self, experiment: str | None) -> Callable[[Run], object] | None:
        """What logs a run in MLflow: in ``experiment``, in the one of all runs, or in MLflow's run that is active."""
        from tfos_magic.tracking.mlflow_log import active_run, check_installed, log_to_mlflow

        experiment = experiment if experiment is not None else self.config.mlflow or None
        if experiment is None and active_run() is None:
            return None
        check_installed()
        return partial(log_to_mlflow, experiment=experiment or "")

    def log_dir_for(self, base: str | None, name: str) -> str:
        """The own folder of the run called ``name`` under the log directory asked for, or empty when none is."""
        base = base if base is not None else self.config.log_dir
        return run_folder(base, name) if base else ""

    def tensorboard(self, logdir: str | None) -> Result:
        """TensorBoard for a log directory, by default that of the last run with one."""
        if logdir is None:
            if self.last_run is None or not self.last_run.state.log_dir:
                raise UsageError(
                    "There is no log directory yet: %tfos tensorboard LOGDIR, or train with --tensorboard."
                )
            logdir = str(Path(self.last_run.state.log_dir).parent)
        with interruptible():
            return self.boards.ensure(os.path.expanduser(logdir))

    def stop(self, force: bool = False) -> bool:
        """End the runs that were detached, unless by ``force``, and the cluster; True when there was one."""
        return self.shared.stop(force)

    def close_quickly(self) -> None:
        """At the kernel's exit. The cluster closes itself."""
        for run in self.detached:
            run.mute()
        self.boards.close()
        self.logs.close()
        self.files.close()

    def close(self) -> bool:
        """End all that this kernel started through the magics; True when there was a cluster."""
        ended = self.stop()
        self.boards.close()
        self.logs.close()
        self.files.close()
        return ended


def _is_session(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ == "SparkSession" and kind.__module__.startswith("pyspark.sql") and not is_stopped(value)
