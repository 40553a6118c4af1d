"""The JVM of a session that we make: it starts quickly, and what it prints comes to this process, without what tells
nobody anything."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tfos_magic.errors import ClusterError
from tfos_magic.spark import class_archive

# How Spark logs, and what the JVM and Hadoop do without.
_BANNER = re.compile(
    rb"Using Spark's default log4j profile|Setting (default|Spark) log level to|To adjust logging level use"
    rb"|Using incubator modules|Unable to load native-hadoop library"
)

# A JVM's first minute goes into its optimizing compiler as much as into Spark; here it waits until code has run ten
# times as often as by default. That of spark-submit, which lives for a second, has none.
_PATIENT = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_BRIEF = "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


_OF_PYSPARK = {"spark.app.name": "pyspark-shell", "spark.master": "local[*]"}
"""With what PySpark itself launches a JVM."""

JAVA_ENDED = (
    "Spark's Java process has ended, perhaps for lack of memory (spark.driver.memory), and the session and the workers "
    "with it: restart the kernel; a run with --checkpoint-dir goes on with --resume."
)


def launch_jvm(conf: Any) -> None:
    """Launch the JVM that a session with ``conf`` is to have, unless this process has one. Raises what PySpark does."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), name="spark-messages", daemon=True).start()
    try:
        with _options():
            gateway = launch_gateway(conf, {"stderr": writing})
        SparkContext(conf=conf, gateway=gateway)
        for name, _ in conf.getAll():  # by which the next session of this process, the user's own, would begin
            gateway.jvm.System.clearProperty(name)
        for name, value in _OF_PYSPARK.items():
            gateway.jvm.System.setProperty(name, value)
    finally:
        os.close(writing)


def check_jvm() -> None:
    """Raise :class:`ClusterError` where the Java process that this one has started is no more: it gets no other."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None and has_ended(SparkContext._gateway):
        raise ClusterError(JAVA_ENDED)


def has_ended(gateway: Any) -> bool:
    """Whether the Java process behind a gateway, which this one has started, is no more."""
    process = getattr(gateway, "proc", None)
    return process is not None and process.poll() is not None


@contextmanager
def _options() -> Iterator[None]:
    """Put our options for JVMs before the user's, of which the last ones hold."""
    archive = class_archive.path_of()
    mapped = class_archive.mapping(archive) if class_archive.is_ours(archive) else ""
    before = {name: os.environ.get(name) for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")}
    for (name, value), ours in zip(before.items(), (f"{_PATIENT} {mapped}", _BRIEF), strict=True):
        os.environ[name] = f"{ours} {value or ''}"
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _pass_on(reading: int) -> None:
    with open(reading, "rb") as lines:
        for line in lines:
            if not _BANNER.search(line):
                os.write(
                    2, line
                )  # where the JVM would have written; Python's stderr may be gone when this process ends
