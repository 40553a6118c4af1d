"""What an executor can do for a cluster, found out by a Spark task that starts nothing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import shutil
import socket
from collections.abc import Iterator
from typing import Any

from tfos_magic.feed.agent.spool import local_directory
from tfos_magic.worker.host import find_place, missing_packages

RESULT_SCHEMA = "slot bigint, report string"
PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "pyarrow", "pyzmq")
CONNECT_SECONDS = 3.0


class Probe:
    """One call per task; its row holds JSON: host, versions, missing packages, GPUs, disk, unreachable addresses. Tasks
    of a barrier stage, which run at once, try each other as well.

    ``endpoint`` is where the kernel listens at the moment, ``tcp://host:port``.
    """

    def __init__(self, endpoint: str, spool_dir: str | None) -> None:
        self._endpoint, self._spool_dir = endpoint, spool_dir

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        for _ in batches:
            pass
        context: Any = TaskContext.get()
        place = find_place(context, self._endpoint, int(context.partitionId()))
        report = {
            "host": place.host,
            "python": platform.python_version(),
            "versions": _versions(),
            "missing": missing_packages(),
            "gpus": place.gpus,
            "disk": _disk(self._spool_dir or local_directory()),
            "unreachable": self._unreachable(context, place.host),
        }
        yield pa.RecordBatch.from_pydict({"slot": [place.slot], "report": [json.dumps(report)]})

    def _unreachable(self, context: Any, host: str) -> list[str]:
        """The addresses among kernel and peers that do not take a connection from here, and why."""
        from pyspark import BarrierTaskContext

        kernel = self._endpoint.removeprefix("tcp://")
        if not isinstance(context, BarrierTaskContext):
            return tried(kernel)
        with socket.socket() as listener:
            listener.bind((host, 0))
            listener.listen(128)
            peers = context.allGather("{}:{}".format(*listener.getsockname()))
            troubles = tried(kernel, *peers)
            context.barrier()
        return troubles


def tried(*addresses: str) -> list[str]:
    """Those of the addresses that take no connection from here, and why."""
    return [trouble for address in addresses if (trouble := _try(address))]


def _try(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        return f"{address} ({error})"
    return ""


def _disk(directory: str) -> dict[str, Any]:
    try:
        return {"directory": directory, "free": shutil.disk_usage(directory).free, "error": ""}
    except OSError as error:
        return {"directory": directory, "free": 0, "error": str(error.strerror)}


def _versions() -> dict[str, str]:
    """Installed versions without importing anything: TensorFlow would take seconds and hundreds of megabytes."""
    versions: dict[str, str] = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
