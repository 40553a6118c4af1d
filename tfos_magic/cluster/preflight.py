"""Preflight: what a cluster needs, looked at piece by piece, with the remedy for what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from tfos_magic.cluster.workers import ClusterSpec
from tfos_magic.errors import ClusterError
from tfos_magic.spark import session as sessions
from tfos_magic.spark.connect.reachability import Look
from tfos_magic.spark.encryption import DISK_SETTING, MEMORY, encryption_of, hides_tasks
from tfos_magic.spark.failures import cause_of
from tfos_magic.spark.shipping import ship_package
from tfos_magic.worker.probe import RESULT_SCHEMA, Probe

JAVA_AT_LEAST = 17
FREE_BYTES = 2e9
PROBE_SECONDS = 60.0


@dataclass(frozen=True)
class Finding:
    """One line of the doctor. ``fix`` says what to do; it is empty where all is well."""

    name: str
    text: str
    fix: str = ""


def examine(spark: Any, requested_cluster: ClusterSpec, running: bool = False) -> Iterator[Finding]:
    """Look at everything in turn, without starting TensorFlow.

    ``spark`` None stands for the local session that would be made. A ``running`` cluster holds the slots, and
    has shown that the executors can do what they must.
    """
    yield _java(spark)
    yield _kernel()
    if spark is None:
        yield Finding("session", "none yet: a local one would be made")
    elif sessions.is_stopped(spark):
        yield Finding("session", "stopped", "make a new one, or delete the variable `spark`")
    elif (look := Look(spark) if sessions.is_connect(spark) else None) and not look.answers:
        remedy = look.end or "see that it runs, and that this machine reaches it"
        yield Finding("session", "its server does not answer" if look.waits else "has ended", remedy)
    else:
        yield _session(spark)
        yield _encryption(spark, requested_cluster)
        if running:
            yield Finding("cluster", "running: %tfos status shows it")
        else:
            yield from _room(spark, requested_cluster)
    yield _proxy()


def _java(spark: Any) -> Finding:
    if spark is not None and not sessions.is_stopped(spark) and not sessions.is_connect(spark):
        version = str(spark.sparkContext._jvm.java.lang.System.getProperty("java.version"))
        return _judge_java(version, "of this session")
    if sessions.is_connect(spark):
        return Finding("Java", "not needed here: the Connect server has it")
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        return Finding("Java", "not found", f"install a JDK or JRE of {JAVA_AT_LEAST} or later, or set JAVA_HOME")
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    version = printed.split('"')[1] if printed.count('"') >= 2 else printed.strip()
    return _judge_java(version, f"at {java}")


def _judge_java(version: str, where: str) -> Finding:
    major = version.split(".")[0]
    old = major.isdigit() and int(major) < JAVA_AT_LEAST
    return Finding("Java", f"{version} {where}", f"Spark 4 needs Java {JAVA_AT_LEAST} or later" if old else "")


def _kernel() -> Finding:
    versions = {name: _version(name) for name in ("pyspark", "keras", "ipykernel")}
    shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    fix = "" if versions["pyspark"] else "pip install pyspark in this kernel's environment"
    return Finding("kernel", f"Python {platform.python_version()}, {shown}", fix)


def _session(spark: Any) -> Finding:
    kind = "Spark Connect" if sessions.is_connect(spark) else "classic session"
    dynamic = ", dynamic allocation" if sessions.is_dynamic(spark) else ""
    return Finding("session", f"Spark {spark.version} on {sessions.master_of(spark)}, {kind}{dynamic}")


def _encryption(spark: Any, requested_cluster: ClusterSpec) -> Finding:
    """What crosses hosts and lies on disks, and whether Spark lets others read the keys, which travel in its tasks."""
    try:
        spec = requested_cluster
        decided = encryption_of(spark, spec.encrypt, spec.spool_dir, spec.spool_gb)
    except ClusterError as error:
        return Finding("encryption", "the requested options contradict each other", str(error))
    reason = decided.why or "no setting of the session asks for it"
    rows = f"; fed rows stay in memory, for {DISK_SETTING}" if decided.spool_dir == MEMORY else ""
    text = f"between hosts {'on' if decided.network else 'off'} for a cluster started now ({reason}){rows}"
    if hides_tasks(spark) or sessions.master_of(spark).startswith("local["):
        return Finding("encryption", text)
    readable = "the cluster's keys travel in Spark's tasks, and anyone who can read Spark's RPC has them"
    settings = "set spark.authenticate and spark.network.crypto.enabled to true, or spark.ssl.rpc.enabled"
    if decided.network:
        return Finding("encryption", text, f"{readable}: {settings}")
    return Finding("encryption", f"{text}; {readable}. Where others can, {settings}")


def _room(spark: Any, requested_cluster: ClusterSpec) -> Iterator[Finding]:
    slots = _slots(spark, requested_cluster)
    yield slots
    if not slots.fix:
        yield from _executors(spark, requested_cluster)


def _slots(spark: Any, requested_cluster: ClusterSpec) -> Finding:
    total, needed = sessions.total_cores(spark), requested_cluster.slots
    if total is None:
        return Finding("slots", "unknown on a Connect session; a start waits for them")
    free = total - sessions.busy_cores(spark)
    if sessions.is_dynamic(spark):
        return _slots_to_come(spark, needed, total)
    servers = f", {requested_cluster.servers} parameter servers" if requested_cluster.servers else ""
    beside = ", feeding and messages" if requested_cluster.via else " and feeding"
    text = f"{free} of {total} free; {requested_cluster.workers} workers{servers}{beside} need {needed}"
    fix = "" if free >= needed else "fewer workers, a session with more cores, or wait for other Spark jobs to end"
    return Finding("slots", text, fix)


def _slots_to_come(spark: Any, needed: int, total: int) -> Finding:
    most = sessions.most_cores(spark)
    text = f"{total} now, {'as many as Spark gets' if most is None else f'{most} at most'}; {needed} are needed"
    short = most is not None and most < needed
    return Finding("slots", text, "fewer workers, or raise spark.dynamicAllocation.maxExecutors" if short else "")


def _executors(spark: Any, requested_cluster: ClusterSpec) -> Iterator[Finding]:
    host = requested_cluster.driver_host or sessions.driver_address(spark)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, requested_cluster.control_port))
            listener.listen(128)
        except OSError as error:
            remedy = "set %config TFOS.driver_host and TFOS.control_port to what this machine has and executors reach"
            yield Finding("control port", f"cannot listen on {host}:{requested_cluster.control_port}: {error}", remedy)
            return
        port = listener.getsockname()[1]
        probe = Probe(f"tcp://{host}:{port}", requested_cluster.spool_dir)
        try:
            reports = _ask(spark, requested_cluster.workers + requested_cluster.servers, probe)
        except Exception as error:  # whatever Spark raises is what a start would meet
            remedy = "see the executors' logs; a cluster cannot start like this"
            yield Finding("executors", cause_of(error), remedy)
            return
    kernel = f"{host}:{port} "
    for slot, executor in enumerate(reports):
        if requested_cluster.via:  # by which nobody dials the kernel
            executor["unreachable"] = [each for each in executor["unreachable"] if not each.startswith(kernel)]
        yield from _judge_executor(slot, executor)


def _ask(spark: Any, workers: int, probe: Probe) -> list[dict[str, Any]]:
    """What each of ``workers`` slots found; the job is cancelled when it takes longer than ``PROBE_SECONDS``."""
    tag = f"tfos-doctor-{uuid4().hex[:8]}"
    limit = threading.Timer(PROBE_SECONDS, sessions.cancel_tag, (spark, tag))
    limit.name = "tfos-doctor-limit"
    limit.start()
    try:
        with sessions.job_tag(spark, tag):
            ship_package(spark)
            slots = spark.range(0, workers, 1, workers)
            # Spark runs no barrier stage with dynamic allocation.
            at_once = not sessions.is_dynamic(spark)
            rows = slots.mapInArrow(probe, RESULT_SCHEMA, barrier=at_once).collect()
    finally:
        limit.cancel()
        limit.join()
    return [json.loads(row.report) for row in sorted(rows, key=lambda row: row.slot)]


def _judge_executor(slot: int, report: dict[str, Any]) -> Iterator[Finding]:
    name, host = f"executor slot {slot}", report["host"]
    versions = ", ".join(f"{package} {version}" for package, version in report["versions"].items())
    yield Finding(name, f"{host}: Python {report['python']}, {versions}", report["missing"] or _compare(report))
    unreachable = report["unreachable"]
    remedy = (
        "open these ports between the hosts, or set %config TFOS.driver_host to an address that executors reach; where "
        "that is the kernel's alone, --via spark does without"
    )
    yield Finding(f"{name} ports", ", ".join(unreachable) or "kernel and peers answer", remedy if unreachable else "")
    yield Finding(f"{name} GPU", ", ".join(report["gpus"]) or "none given by Spark")
    disk = report["disk"]
    room = disk["error"] or f"{disk['free'] / 1e9:.1f} GB free"
    full = "free some, or set %config TFOS.spool_dir to a directory with room on every executor"
    yield Finding(f"{name} spool", f"{room} in {disk['directory']}", full if disk["free"] < FREE_BYTES else "")


def _compare(report: dict[str, Any]) -> str:
    """The remedy where cells pickled by this Python, or models by this Keras, may not load over there."""
    version, theirs = platform.python_version_tuple()[:2], tuple(report["python"].split(".")[:2])
    if version != theirs:
        return f"this kernel runs Python {'.'.join(version)}: cells travel as pickles and need the same minor version"
    keras = _version("keras")
    if keras and keras != report["versions"].get("keras", keras):
        return f"this kernel has keras {keras}: a model that comes back may not load; install the same version"
    return ""


def _proxy() -> Finding:
    hub = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "")
    if importlib.util.find_spec("jupyter_server_proxy"):
        return Finding("TensorBoard", f"through jupyter-server-proxy{f' at {hub}' if hub else ''}")
    if hub:
        return Finding("TensorBoard", f"no proxy behind {hub}", "install jupyter-server-proxy in the Jupyter server")
    return Finding("TensorBoard", "on 127.0.0.1; jupyter-server-proxy is not installed, which a remote server needs")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
