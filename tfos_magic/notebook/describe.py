"""The cluster, and a run that is only planned, as text."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from typing import Any

from tfos_magic.cluster.preflight import Finding
from tfos_magic.cluster.runs.request import RunRequest
from tfos_magic.cluster.runs.state import FeedState, RunState
from tfos_magic.cluster.workers import ClusterStatus
from tfos_magic.notebook.capture import Captured
from tfos_magic.notebook.views.time_spent import advice, seconds_by_phase, told
from tfos_magic.notebook.views.wording import count_of
from tfos_magic.notebook.views.worker_rows import straggler
from tfos_magic.processes.orphans import Orphan

_MEGABYTE = 1e6
REPORTED = (
    *("tfos_magic", "pyspark", "tensorflow", "tensorflow-cpu", "keras", "tensorboard", "numpy", "pandas", "pyarrow"),
    *("pyzmq", "ipython", "ipykernel", "ipywidgets", "jupyterlab", "notebook", "optuna"),
)
"""Packages whose versions a report of a fault has."""


def describe_status(status: ClusterStatus) -> str:
    """A few lines: the cluster, then each worker."""
    versions = f", TensorFlow {status.tensorflow}, Keras {status.keras}" if status.tensorflow else ""
    servers = sum(worker.role == "ps" for worker in status.workers)
    count = count_of(len(status.workers) - servers, "worker")
    count += f" and {count_of(servers, 'parameter server')}" if servers else ""
    lines = [f"Cluster {status.phase} on {status.master}: {count}{versions}."]
    if status.reason:
        lines.append(status.reason)
    for worker in status.workers:
        lines.append(
            f"  {worker.role} {worker.rank}  {worker.host}  pid {worker.pid or '-'}  {worker.device or '-'}  "
            f"{worker.state}  memory {worker.memory / _MEGABYTE:.0f} MB  spool {worker.spool / _MEGABYTE:.1f} MB"
        )
    return "\n".join(lines)


def describe_feeds(feeds: Sequence[FeedState]) -> str:
    """A few lines on each DataFrame that was fed: its size, and dtype and shape of every column."""
    lines = []
    for feed in feeds:
        held = f"{feed.rows:,} rows, {feed.bytes / _MEGABYTE:.1f} MB were fed"
        lines.append(f"DataFrame {feed.name}: {'streamed anew in every epoch' if feed.streamed else held}.")
        lines += [f"  {column}" for column in feed.columns]
    return "\n".join(lines)


def status_dict(status: ClusterStatus | None, feeds: Sequence[FeedState], run: RunState | None) -> dict[str, Any]:
    """The cluster, or that there is none, the DataFrames that were fed, and the last run, if any: as JSON has it."""
    known: dict[str, Any] = {"phase": "none"} if status is None else asdict(status)
    plain = {**known, "feeds": [asdict(feed) for feed in feeds], "run": None if run is None else run_dict(run)}
    return dict(json.loads(json.dumps(plain)))


def json_of(known: Any) -> str:
    """What is known as JSON, which has no word for numbers that are not finite: null."""
    return json.dumps(json.loads(json.dumps(known), parse_constant=lambda _: None))


def run_dict(run: RunState) -> dict[str, Any]:
    """A run so far: ``history`` by epoch, ``seconds`` of all and of each part, the rank that the others wait for, if
    there is one, bytes per epoch, notices to the user."""
    return {
        "name": run.name,
        "strategy": run.strategy,
        "phase": run.phase.value,
        "epochs": run.epochs,
        "history": run.history,
        "seconds": run.elapsed,
        "phases": seconds_by_phase(run),
        "straggler": straggler(run),
        "sent_per_epoch": run.sent_per_epoch,
        "restarts": run.restarts,
        "notices": told(run),
    }


def describe_finding(finding: Finding) -> str:
    """One line of ``%tfos doctor``, and a second with the remedy where one is needed."""
    line = f"{'✗' if finding.fix else '✓'} {finding.name:<22} {finding.text}"
    return f"{line}\n  {'':<22} → {finding.fix}" if finding.fix else line


def report_of(findings: Sequence[Finding]) -> str:
    """What the doctor found and the versions here, as Markdown for an issue, without names of users and addresses."""
    versions = [f"{name} {found}" for name in REPORTED if (found := _version(name))]
    lines = [f"Python {platform.python_version()}, {platform.platform()}", ", ".join(versions), ""]
    text = "\n".join([*lines, *map(describe_finding, findings)])
    for private, shown in ((os.path.expanduser("~"), "~"), (socket.gethostname(), "HOST"), (getpass.getuser(), "USER")):
        text = re.sub(rf"(?<![\w.-]){re.escape(private)}(?![\w-])", shown, text)
    text = re.sub(r"\b(?!127\.)\d{1,3}(\.\d{1,3}){3}\b", "ADDRESS", text)
    return f"```text\n{text}\n```"


def _version(name: str) -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return ""


def describe_orphans(orphans: list[Orphan]) -> str:
    """What ``%tfos clean`` found, a line each."""
    return "\n".join(
        f"  {orphan.kind}  pid {orphan.pid}  {orphan.memory / _MEGABYTE:.0f} MB  "
        f"since {time.strftime('%Y-%m-%d %H:%M', time.localtime(orphan.started))}"
        for orphan in orphans
    )


def describe_plan(
    request: RunRequest, captured: Captured, size: int, running: bool, last: RunState | None = None
) -> str:
    """What a run would do, for ``--dry-run``, and what would have made the ``last`` one faster."""
    options = "".join(f", {name} {value}" for name, value in request.options.given().items())
    lines = [
        f"Cluster: {'the running one' if running else 'a new one'}, {count_of(size, 'worker')}, "
        f"strategy {request.strategy}{options}.",
        f"Values sent: {', '.join(captured.values) or 'none'} ({len(captured.payload) / _MEGABYTE:.2f} MB pickled).",
        f"Modules imported: {', '.join(captured.modules) or 'none'}.",
    ]
    for name, use in captured.frames.items():
        columns = "; ".join(map(str, use.plan.carried))
        label = "".join(f", {use.selection.role_of(name)} {name}" for name in use.selection.targets)
        order = "shuffled" if request.shuffle else "in order"
        lines.append(f"DataFrame fed: {name} ({columns}{label}), {request.batch_size} rows to a global batch, {order}.")
    lines += request.notices
    lines.append(f"Names brought back: {', '.join(request.outputs) or 'none'}.")
    lines.append(f"TensorBoard scalars: {request.log_dir or 'none'}.")
    lines += [f"The last run, {last.name}: {text}"] if last is not None and (text := advice(last)) else []
    return "\n".join(lines)
