"""A cluster as a table of its workers."""

from __future__ import annotations

from html import escape

from tfos_magic.cluster.workers import ClusterStatus, WorkerStatus
from tfos_magic.notebook.views.run_table import html_table
from tfos_magic.notebook.views.wording import count_of, size

COLUMNS = ("Worker", "Host", "State", "Device", "Memory", "Spool")


def cluster_bundle(status: ClusterStatus) -> dict[str, str]:
    """The MIME bundle of a cluster: a line and a table, and the line alone as text."""
    text = f"Cluster {status.phase}: {about(status)}. {status.reason}".strip()
    rows = [COLUMNS, *map(worker_row, status.workers)]
    return {"text/html": f"<p>{escape(text)}</p>{html_table(rows) if status.workers else ''}", "text/plain": text}


def about(status: ClusterStatus) -> str:
    """How many workers there are, where, and with what."""
    servers = sum(worker.role == "ps" for worker in status.workers)
    versions = f"TensorFlow {status.tensorflow}, Keras {status.keras}" if status.tensorflow else ""
    counts = [count_of(len(status.workers) - servers, "worker")]
    counts += [count_of(servers, "parameter server")] if servers else []
    return " · ".join(part for part in (*counts, status.master, versions) if part)


def worker_row(worker: WorkerStatus) -> list[str]:
    """One worker in words, by ``COLUMNS``."""
    name = f"{worker.role} {worker.rank}" if worker.role == "ps" else str(worker.rank)
    place = f"{worker.host} · pid {worker.pid}" if worker.pid else worker.host
    return [name, place, worker.state, worker.device or "", size(worker.memory), size(worker.spool)]
