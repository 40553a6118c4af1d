"""The Spark job whose tasks are the agents: started in a thread of its own, it lasts as long as the cluster."""

from __future__ import annotations

import hashlib
import io
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tfos_magic
from tfos_magic.cluster.feed import spark_cause
from tfos_magic.cluster.session import Session, cancel_tag, is_connect, is_stopped, job_tag, runs_in_this_process_tree
from tfos_magic.node.config import AgentConfig
from tfos_magic.node.task import RESULT_SCHEMA, AgentTask

SHIPPED_ROOMS = ("records", "training", "node")


class AgentJob:
    """``count`` barrier tasks with ``cores`` cores and ``gpus`` GPUs each. It calls ``on_end(reason)`` at its end."""

    def __init__(
        self,
        spark: Session,
        count: int,
        *,
        cores: int,
        gpus: int,
        config: AgentConfig,
        tag: str,
        on_end: Callable[[str], None],
    ) -> None:
        self._spark, self._count, self._tag, self._on_end = spark, count, tag, on_end
        self._task = AgentTask(config)
        self._profile = _resource_profile(cores, gpus)
        self._thread = threading.Thread(target=self._run, name="tfos-agents-job", daemon=True)

    def start(self) -> None:
        ship_package(self._spark)
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        """True when the job has ended within ``timeout`` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Cancel this job, and no other. Spark gives its Python workers two seconds before it kills them."""
        if not is_stopped(self._spark):
            cancel_tag(self._spark, self._tag)

    def _run(self) -> None:
        try:
            with job_tag(self._spark, self._tag):
                reason = self._collect()
        except Exception as error:  # whatever Spark raises is the reason the agents are gone
            reason = spark_cause(str(error))
        self._on_end(reason)

    def _collect(self) -> str:
        if not is_connect(self._spark):
            self._spark.sparkContext.setJobDescription(f"tfos_magic: {self._count} workers")
        slots = self._spark.range(0, self._count, 1, self._count)
        rows = slots.mapInArrow(self._task, RESULT_SCHEMA, barrier=True, profile=self._profile).collect()
        return "; ".join(sorted({str(row.outcome) for row in rows}))


def _resource_profile(cores: int, gpus: int) -> Any:
    """Cores and GPUs by Spark's own resource scheduling; None for the session's ordinary tasks."""
    if cores <= 1 and not gpus:
        return None
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    requests = TaskResourceRequests().cpus(cores)
    if gpus:
        requests = requests.resource("gpu", gpus)
    return ResourceProfileBuilder().require(requests).build


def ship_package(spark: Session) -> None:
    """Send this package's executor side to the executors, so that they need not have it and always match the kernel.

    Nothing is sent in local mode, where executors are this installation. What the package needs (TensorFlow, pyzmq and
    so on) is not sent: that is for the cluster's own environment.
    """
    if runs_in_this_process_tree(spark):
        return
    content = _zip_package()
    name = f"tfos_magic-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    if is_connect(spark):
        _add_artifact(spark, name, content)
    else:
        _add_py_file(spark, name, content)


def _add_artifact(spark: Session, name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="tfos_magic-") as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            spark.addArtifacts(str(path), pyfile=True)
        except Exception as error:
            # The name holds the content's hash: what is there already is this very file.
            if "ALREADY_EXISTS" not in str(error):
                raise


def _add_py_file(spark: Session, name: str, content: bytes) -> None:
    # Spark serves the file from where it lies, so it must stay as long as the session: in the session's own folder.
    path = Path(spark.sparkContext._temp_dir) / name
    if not path.exists():
        path.write_bytes(content)
        spark.sparkContext.addPyFile(str(path))


def _zip_package() -> bytes:
    """The modules that executors run, as a zip with fixed dates, so that equal code gives an equal file."""
    root = Path(tfos_magic.__file__).parent
    files = sorted([*root.glob("*.py"), *(f for room in SHIPPED_ROOMS for f in (root / room).rglob("*.py"))])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            info = zipfile.ZipInfo(str(Path("tfos_magic") / file.relative_to(root)), (2020, 1, 1, 0, 0, 0))
            archive.writestr(info, file.read_bytes())
    return buffer.getvalue()
