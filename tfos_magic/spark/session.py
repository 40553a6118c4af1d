"""The notebook's Spark session: classic or Connect, its slots, its address, its job tags.

Everything here uses the user's session without changing it, but for its progress bar: no setting is written (which
``planning`` does for a moment), no job but our own is cancelled.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet

from tfos_magic.spark.connect.reachability import ANSWER_SECONDS, STOPPED, in_time, is_silent
from tfos_magic.spark.connect.reachability import Session as Session
from tfos_magic.spark.connect.reachability import is_connect as is_connect
from tfos_magic.spark.jvm import JAVA_ENDED, check_jvm, has_ended, launch_jvm
from tfos_magic.spark.planning import is_adaptive
from tfos_magic.spark.shipping import master_of as master_of
from tfos_magic.spark.shipping import runs_in_this_process_tree as runs_in_this_process_tree

SPARE_SLOTS = 2
CANCEL_SECONDS = 2.0
_WITHOUT_BAR: WeakSet[Any] = WeakSet()
_TAGS: dict[str, int] = {}
"""Those of our jobs that run, in classic sessions, and the cores of each beyond those of an ordinary task."""
_GIVEN_UP: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
_DAEMON, _SPARKS_DAEMON = "tfos_magic.spark.worker_daemon", "pyspark.daemon"


def make_local_session(slots: int) -> Session:
    """A local session with ``slots`` task slots, and some to spare, so that a cluster on it can get larger.

    DataFrames have as many partitions as without these. Its workers run this very Python.
    """
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    check_jvm()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Another Python need not have this package.
    daemon = _DAEMON if os.environ["PYSPARK_PYTHON"] == sys.executable else _SPARKS_DAEMON
    conf = (
        SparkConf()
        .setMaster(f"local[{slots + SPARE_SLOTS}]")
        .setAppName("tfos_magic")
        .set("spark.default.parallelism", str(slots))
        .set("spark.driver.host", "127.0.0.1")
        .set("spark.driver.bindAddress", "127.0.0.1")
        .set("spark.ui.showConsoleProgress", "false")
        .set("spark.log.level", "ERROR")
        .set("spark.python.daemon.module", daemon)
    )
    launch_jvm(conf)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def is_dataframe(value: Any) -> bool:
    """True for a Spark DataFrame, classic or Connect; Spark is not imported to find out."""
    module = sys.modules.get("pyspark.sql.dataframe")
    if module is not None and isinstance(value, module.DataFrame):
        return True
    return type(value).__name__ == "DataFrame" and type(value).__module__.startswith("pyspark.sql")


def driver_address(spark: Session) -> str:
    """The address of this machine that executors reach: loopback where all is on one machine."""
    if not is_connect(spark):
        if master_of(spark).startswith("local"):
            return "127.0.0.1"
        return str(spark.sparkContext.getConf().get("spark.driver.host", "") or socket.gethostname())
    return _local_address_toward(_connect_host(spark))


def _connect_host(spark: Session) -> str:
    host = str(spark._client.host)
    return urlsplit(f"//{host}").hostname or "127.0.0.1"


def _local_address_toward(host: str) -> str:
    """The local address a packet to ``host`` would leave from; nothing is sent."""
    family, kind, proto, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, proto) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def total_cores(spark: Session) -> int | None:
    """Cores that Spark can give to tasks at this moment, or None where the session does not tell (Connect)."""
    if is_connect(spark):
        return None
    jsc = spark.sparkContext._jsc.sc()
    slots = int(jsc.maxNumConcurrentTasks(jsc.resourceProfileManager().defaultResourceProfile()))
    return slots * task_cpus(spark)


def task_cpus(spark: Session) -> int:
    """``spark.task.cpus``: the cores of one ordinary task."""
    return int(spark.sparkContext.getConf().get("spark.task.cpus", "1"))


def busy_cores(spark: Session) -> int:
    """Cores held by running tasks, ours and others'. 0 on a Connect session, which does not tell.

    As its scheduler has it, which counts tasks: what Spark tells of a stage may be seconds old. Executors that were
    given up do not count.
    """
    if is_connect(spark):
        return 0
    given_up = _GIVEN_UP.get(spark.sparkContext, set())
    executors = spark.sparkContext._jsc.sc().taskScheduler().runningTasksByExecutors().iterator()
    running = 0
    while executors.hasNext():
        executor = executors.next()
        running += 0 if executor._1() in given_up else int(executor._2())
    return running * task_cpus(spark) + sum(list(_TAGS.values()))


def give_up_executor(spark: Session, executor: str) -> None:
    """Have Spark replace an executor, and send it no more tasks. Nothing happens where it has no id, as in local mode
    and on a Connect session."""
    if executor and not is_connect(spark):
        _GIVEN_UP.setdefault(spark.sparkContext, set()).add(executor)
        spark.sparkContext._jsc.sc().killAndReplaceExecutor(executor)


def is_dynamic(spark: Session) -> bool:
    """Whether Spark asks for executors as tasks wait for them, and gives back idle ones. False where the session does
    not tell (Connect)."""
    return not is_connect(spark) and bool(spark.sparkContext._jsc.sc().executorAllocationManager().isDefined())


def most_cores(spark: Session) -> int | None:
    """The cores that a session may have at most, or None where its settings do not tell."""
    conf, master, dynamic = spark.sparkContext.getConf(), master_of(spark), is_dynamic(spark)
    if not dynamic and (found := re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)", master)):
        return int(found[1]) * int(found[2])
    if not dynamic and master.startswith("spark://"):
        return int(most) if (most := conf.get("spark.cores.max")) else None
    executors = conf.get("spark.dynamicAllocation.maxExecutors" if dynamic else "spark.executor.instances")
    cores = conf.get("spark.executor.cores")
    return int(executors) * int(cores) if executors and cores else None


def copies_long_tasks(spark: Session) -> bool:
    """Whether Spark runs a task that takes long a second time, even where it is the only one of its stage. False where
    the session does not tell (Connect)."""
    if is_connect(spark):
        return False
    conf = spark.sparkContext.getConf()
    speculates = str(conf.get("spark.speculation", "false")).lower() == "true"
    return speculates and bool(conf.get("spark.speculation.task.duration.threshold", ""))


@contextmanager
def job_tag(spark: Session, tag: str, cores: int = 0) -> Iterator[None]:
    """Tag the jobs that this thread starts, so that they, and only they, can be cancelled, or spared.

    A task of theirs takes so many ``cores``, where that is more than an ordinary one takes.
    """
    if is_connect(spark):
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    _TAGS[tag] = max(0, cores - task_cpus(spark))
    spark.sparkContext.addJobTag(tag)
    try:
        yield
    finally:
        spark.sparkContext.removeJobTag(tag)
        _TAGS.pop(tag, None)


@contextmanager
def sparing_jobs() -> Iterator[None]:
    """From here on, let no interrupt of this program cancel the jobs of a cluster."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, sparing(signal.getsignal(signal.SIGINT)))
    yield


def sparing(handler: Any) -> Any:
    """The ``handler`` of interrupts; for PySpark's own, which cancels all jobs, one that spares those of clusters."""
    name = getattr(handler, "__qualname__", "")
    return _spare if name == "SparkContext._do_init.<locals>.signal_handler" else handler


def _spare(*_: Any) -> NoReturn:
    # Another thread has a connection to Spark of its own: this one may have been interrupted in the use of its.
    cancelling = threading.Thread(target=_cancel_others, daemon=True, name="tfos-cancel")
    cancelling.start()
    cancelling.join(CANCEL_SECONDS)
    raise KeyboardInterrupt


def _cancel_others() -> None:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        return
    with suppress(Exception):  # of a session that is gone
        scala = context._jsc.sc()
        tracker = scala.statusTracker()
        ours = {job for tag in list(_TAGS) for job in tracker.getJobIdsForTag(tag)}
        for job in {*tracker.getActiveJobIds()} - ours:
            scala.cancelJob(job)


def cancel_tag(spark: Session, tag: str) -> bool:
    """Cancel the jobs with this tag; nothing happens where there are none or the session is gone.

    False where a Connect server does not answer: it hears of it when it does, if ever.
    """
    if is_connect(spark):
        with suppress(Exception):  # of a session that is gone
            in_time(lambda: spark.interruptTag(tag), None, 0.0 if is_silent(spark) else ANSWER_SECONDS)
        return not is_silent(spark)
    if spark.sparkContext._jsc is not None:
        try:
            spark.sparkContext.cancelJobsWithTag(tag)
        except Exception:  # of py4j, whose first call after one that was interrupted may fail
            spark.sparkContext.cancelJobsWithTag(tag)
    return True


def end_progress_bar(spark: Session) -> bool:
    """End the bar that Spark writes while jobs run, as those of the workers do for long; True when there was one.

    It does not come back.
    """
    if is_connect(spark) or spark.sparkContext in _WITHOUT_BAR:
        return False
    _WITHOUT_BAR.add(spark.sparkContext)
    bar = spark.sparkContext._jsc.sc().progressBar()
    if bar.isDefined():
        bar.get().stop()
    return bool(bar.isDefined())


def is_stopped(spark: Session) -> bool:
    """True when the user has stopped the session, so that nothing of it may be called any more."""
    if is_connect(spark):
        return bool(getattr(spark, "is_stopped", False))
    return spark.sparkContext._jsc is None or has_ended(spark.sparkContext._gateway)


def end_of(spark: Session) -> str:
    """What has become of a session that has ended, and what to do."""
    return JAVA_ENDED if not is_connect(spark) and has_ended(spark.sparkContext._gateway) else STOPPED


def repeats(df: Any) -> bool:
    """Whether Spark vouches that ``df``, computed again, has the same rows in the same order in each partition.

    Not after a shuffle, whose blocks arrive in any order; a Connect session does not tell.
    """
    if is_connect(df.sparkSession):
        return False
    execution = df._jdf.queryExecution()
    if is_adaptive(execution):
        return False
    return str(execution.toRdd().outputDeterministicLevel().toString()) == "DETERMINATE"
