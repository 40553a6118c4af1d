"""A cluster that runs a program on each node, fed by Spark or by itself."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tfos_magic.cluster.cluster import TFCluster as Cluster
from tfos_magic.cluster.runs.run import Run
from tfos_magic.cluster.runs.state import RunPhase, RunState
from tfos_magic.cluster.startup import Waits, heard_by
from tfos_magic.errors import ClusterError, FeedError, TFOSError, UsageError
from tfos_magic.notebook.views.choice import choose_view
from tfos_magic.spark.session import is_dynamic
from tfos_magic.tensorboard.server_process import Serving, TensorBoards
from tfos_magic.tensorflowonspark import ship
from tfos_magic.tensorflowonspark.feeding import Feeding
from tfos_magic.tensorflowonspark.TFSparkNode import NodePlan
from tfos_magic.transport.messages import AS_WRITTEN

QUEUES = ("input", "output", "error")
START_SECONDS = 600.0
LOOK_SECONDS = 0.1
QUIET_SECONDS = 60.0
_PROGRAM = """
from tfos_magic.tensorflowonspark.TFSparkNode import run_node
run_node(map_fun, tf_args, plan, print)
"""


class InputMode:
    """Who reads a program's data: the program itself, or Spark, which feeds it."""

    TENSORFLOW = 0
    SPARK = 1


class TFCluster:
    """A cluster whose nodes run a program: what :func:`run` gives."""

    def __init__(self, sc: Any, cluster: Cluster, work: Run, plan: NodePlan, mode: int, queues: Sequence[str]) -> None:
        self.sc, self.input_mode, self.queues = sc, mode, list(queues)
        self.num_executors, self.cluster_id = len(plan.roles), work.run_id
        self.defaultFS, self.working_dir = plan.default_fs, plan.working_dir
        self.cluster_info: list[dict[str, Any]] = [
            {"executor_id": rank, "host": host, "job_name": job, "task_index": task, "tb_port": 0, "tb_pid": 0}
            for rank, ((job, task), host) in enumerate(zip(plan.roles, plan.hosts, strict=True))
        ]
        self.cluster_meta = {"id": work.run_id, "default_fs": plan.default_fs, "working_dir": plan.working_dir}
        self._cluster, self._work = cluster, work
        self._feeding = Feeding(cluster, work.run_id, [i for i, (job, _) in enumerate(plan.roles) if job in _FED])
        self._boards = TensorBoards()
        self._url: str | None = None
        threading.Thread(target=self._watch, name="tfos-program", daemon=True).start()

    def train(self, dataRDD: Any, num_epochs: int = 0, feed_timeout: float = 600, qname: str = "input") -> None:
        """Feed the rows of an RDD ``num_epochs`` times (0: ten), dealt out evenly, and wait until they are taken.

        A DataFrame is fed at Arrow's speed: its arrays come as NumPy's. A DStream, or a streaming DataFrame, is fed as
        its rows come, and not waited for. Raises what a node's program raised, and :class:`FeedError` where one takes
        no row for ``feed_timeout`` seconds. An interrupt ends the programs as well.
        """
        self._check(qname)
        if num_epochs < 0:
            raise UsageError(f"num_epochs is {num_epochs}: give a number from 0.")
        self._guarded(lambda: self._feeding.train(self.sc, dataRDD, num_epochs or 10, feed_timeout, qname))

    def inference(self, dataRDD: Any, feed_timeout: float = 600, qname: str = "input") -> Any:
        """An RDD of the program's answers to the rows of an RDD, one for each, in their order; lazy."""
        self._check(qname)
        self._raise_failure()
        return self._feeding.inference(dataRDD, feed_timeout, qname)

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """Wait for the programs to end, at most ``timeout`` seconds (-1: without an end), and end the cluster.

        Programs that Spark feeds are told that all rows have come; they have ``grace_secs``, at least a minute, from
        what they did last. Those of parameter servers and evaluators end with the others. Raises what a program raised;
        the SparkContext goes on.
        """
        deadline = time.monotonic() + timeout if timeout > 0 else float("inf")
        try:
            if ssc is not None:
                _await_streaming(ssc, self._work, deadline)
            if self.input_mode == InputMode.SPARK:
                patience = max(grace_secs, QUIET_SECONDS)
                self._end_feeding(min(patience, deadline - time.monotonic()))
                self._await_end(deadline, patience)
            else:
                self._await_end(deadline, float("inf"))
            self._raise_failure()
        finally:
            self._cluster.stop()
            self._boards.close()

    def tensorboard_url(self) -> str | None:
        """Where TensorBoard answers on this machine; None where there is none."""
        return self._url

    def serve_tensorboard(self, log_dir: str) -> None:
        """Start TensorBoard on ``log_dir``, and say where it answers."""
        started = self._boards.ensure(log_dir)
        self._url = started.url if isinstance(started, Serving) else None
        print(f"TensorBoard: {self._url}" if self._url else f"TensorBoard did not start: {started}", flush=True)

    def _watch(self) -> None:
        """Wait for the programs to end. What is still fed to ones that ended well is dropped; else it ends."""
        try:
            self._work.wait()
        except BaseException as error:  # raised where the programs are waited for
            self._feeding.fail(f"the programs of the cluster have ended: {type(error).__name__}: {error}")

    def _check(self, qname: str) -> None:
        if self.input_mode != InputMode.SPARK:
            raise UsageError("Spark feeds only programs that run with input_mode=InputMode.SPARK.")
        if self._cluster.phase.ended:
            raise ClusterError("The cluster has been shut down: run() another one.")
        if qname not in self.queues:
            raise UsageError(f"There is no queue {qname!r}: the cluster has {', '.join(self.queues)}.")

    def _end_feeding(self, grace: float) -> None:
        """End what feeds, and raise what a program raised rather than what became of its rows."""
        try:
            self._feeding.end(grace)
        except FeedError:
            self._raise_failure(wait=3.0)
            raise

    def _guarded(self, feed: Callable[[], None]) -> None:
        """Feed, and raise what a program raised rather than what became of its rows. An interrupt ends the programs."""
        self._raise_failure()
        try:
            feed()
        except KeyboardInterrupt:
            self._feeding.cancel()
            self._work.stop()
            raise
        except Exception as error:
            self._raise_failure(wait=3.0)
            raise error
        self._raise_failure()

    def _raise_failure(self, wait: float = 0.0) -> None:
        """Raise what ended the programs, where that was no end of their own; the cluster goes with it."""
        deadline = time.monotonic() + wait
        while not self._work.done and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        if self._work.done and self._work.phase is not RunPhase.STOPPED:
            try:
                self._work.wait(0)
            except TFOSError:
                self._cluster.stop()
                raise

    def _await_end(self, deadline: float, patience: float) -> None:
        """Wait until the workers' programs have ended, as long as something happens within ``patience`` seconds."""
        state, seen, moved = self._work.state, None, time.monotonic()
        while not self._work.done:
            if self._workers_have_ended(state):
                self._work.stop()
                return
            now, sign = time.monotonic(), _sign_of_life(state)
            if sign != seen:
                seen, moved = sign, now
            if now > deadline or now - moved > patience:
                self._work.stop()
                raise ClusterError(
                    f"The programs did not end within {min(now - moved, patience):.0f} s after the last row came, and "
                    "were ended: stop reading when DataFeed.should_stop(), or give shutdown() more grace_secs."
                    if now <= deadline
                    else "The programs did not end within the timeout of shutdown(), and were ended."
                )
            time.sleep(LOOK_SECONDS)

    def _workers_have_ended(self, state: RunState) -> bool:
        workers = [state.workers[node["executor_id"]] for node in self.cluster_info if node["job_name"] in _FED]
        others = len(workers) < len(self.cluster_info)
        return others and all(worker.state == "done" for worker in workers)


_FED = ("chief", "master", "worker")


def run(
    sc: Any,
    map_fun: Callable[[Any, Any], Any],
    tf_args: Any,
    num_executors: int,
    num_ps: int = 0,
    tensorboard: bool = False,
    input_mode: int = InputMode.TENSORFLOW,
    log_dir: str | None = None,
    driver_ps_nodes: bool = False,
    master_node: str | None = None,
    reservation_timeout: float = START_SECONDS,
    queues: Sequence[str] = QUEUES,
    eval_node: bool = False,
    release_port: bool = True,
) -> TFCluster:
    """Start ``num_executors`` nodes and run ``map_fun(tf_args, ctx)`` on each, in a trainer beside its executor.

    The first ``num_ps`` nodes are parameter servers, then come the chief, where ``master_node`` names it, an evaluator
    where there is an ``eval_node``, and the workers. ``tensorboard`` serves ``log_dir`` on this machine.
    ``reservation_timeout`` is how long they may take to come up, in seconds.
    """
    from pyspark.sql import SparkSession

    roles = deal_roles(num_executors, num_ps, master_node, eval_node)
    if driver_ps_nodes:
        raise UsageError("Parameter servers on the driver are not supported: leave driver_ps_nodes out.")
    if eval_node and input_mode != InputMode.TENSORFLOW:
        raise UsageError("An evaluator reads its own data: use eval_node with InputMode.TENSORFLOW.")
    ship(sc)
    gpus = int(sc.getConf().get("spark.task.resource.gpu.amount", "0"))
    spark = SparkSession(sc)
    # With dynamic allocation there are more slots for whoever asks, and none for a worker that seems idle.
    held = is_dynamic(spark)
    cluster = Cluster(spark, workers=num_executors, gpus=gpus, start_timeout=reservation_timeout, hold_slots=held)
    with heard_by(Waits(aside=True)):
        cluster.start()
    try:
        hosts = [worker.agent.host for worker in cluster.workers]
        fed = input_mode == InputMode.SPARK
        plan = NodePlan(roles, hosts, _default_fs(sc), os.getcwd(), feeds=fed, release_port=release_port)
        work = cluster.submit(
            _PROGRAM,
            name=getattr(map_fun, "__name__", "program"),
            names={"map_fun": map_fun, "tf_args": tf_args, "plan": plan},
            strategy=AS_WRITTEN,
            observer=choose_view(),
        )
        made = TFCluster(sc, cluster, work, plan, input_mode, queues)
        if tensorboard:
            made.serve_tensorboard(log_dir or "tensorboard_0")
        while not work.done and any(worker.state == "waiting" for worker in work.state.workers):
            time.sleep(LOOK_SECONDS)
        return made
    except BaseException:
        cluster.stop()
        raise


def deal_roles(size: int, servers: int, master: str | None, evaluator: bool) -> list[tuple[str, int]]:
    """Which node is what: ``(job, task)`` by its number. Raises :class:`UsageError` where none is left to work."""
    special = [master] * bool(master) + ["evaluator"] * evaluator
    workers = size - servers - len(special)
    if servers < 0 or workers < 0 or (workers == 0 and not master):
        raise UsageError(
            f"{size} nodes are not enough for {servers} parameter servers{f', {master}' if master else ''}"
            f"{', an evaluator' if evaluator else ''} and a worker: ask for more with num_executors."
        )
    jobs = ["ps"] * servers + [str(job) for job in special] + ["worker"] * workers
    return [(job, jobs[:place].count(job)) for place, job in enumerate(jobs)]


def _default_fs(sc: Any) -> str:
    name = str(sc._jsc.hadoopConfiguration().get("fs.defaultFS"))
    return name[:-1] if name.startswith("file://") and name.endswith("/") and len(name) > len("file://") else name


def _sign_of_life(state: RunState) -> Any:
    return state.phase, [(w.state, w.epoch, w.step, w.rows, sum(w.log_order)) for w in state.workers]


def _await_streaming(ssc: Any, work: Run, deadline: float) -> None:
    """Wait until a StreamingContext, or a StreamingQuery, ends, or the programs do, which then ends it."""
    is_query = not hasattr(ssc, "awaitTerminationOrTimeout")
    while not (ssc.awaitTermination if is_query else ssc.awaitTerminationOrTimeout)(1):
        if work.done or time.monotonic() > deadline:
            ssc.stop(**{} if is_query else {"stopSparkContext": False, "stopGraceFully": True})
            return
