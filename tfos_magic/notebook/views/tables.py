"""Tables: of runs, their settings by their last metrics, and of a cluster, its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.cluster.workers import ClusterStatus, WorkerStatus
from tfos_magic.notebook.views.wording import count_of, duration, number, size

COLUMNS = ("Worker", "Host", "State", "Device", "Memory", "Spool")


def run_table(states: Sequence[RunState]) -> dict[str, str]:
    """The MIME bundle of a table of runs, in their order: settings in which they differ, metrics, seconds, state."""
    settings = differing([settings_of(state) for state in states])
    metrics = list(dict.fromkeys(name for state in states for name in state.metrics))
    chosen = list(dict.fromkeys(name for known in settings for name in known))
    header = ["", "run", *chosen, *metrics, "time", "state", "logs"]
    rows = [
        header,
        *(_row(place, *pair, chosen, metrics) for place, pair in enumerate(zip(states, settings, strict=True))),
    ]
    shown = [column for column in zip(*rows, strict=True) if any(column[1:])]
    kept = list(zip(*shown, strict=True))
    return {"text/html": html_table(kept), "text/plain": text_table(kept)}


def settings_of(state: RunState) -> dict[str, str]:
    """What a run was given, in words."""
    return {**state.settings, "workers": str(len(state.workers))}


def differing(settings: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Of the settings of several runs those in which they differ; of one run all."""
    names = dict.fromkeys(name for chosen in settings for name in chosen)
    kept = [name for name in names if len(settings) == 1 or len({chosen.get(name) for chosen in settings}) > 1]
    return [{name: chosen[name] for name in kept if name in chosen} for chosen in settings]


def _row(
    place: int, state: RunState, settings: Mapping[str, str], chosen: Sequence[str], metrics: Sequence[str]
) -> list[str]:
    values = [number(state.metrics[name]) if name in state.metrics else "" for name in metrics]
    return [
        str(place + 1),
        state.name,
        *(settings.get(name, "") for name in chosen),
        *values,
        duration(state.elapsed),
        state.phase.value,
        state.log_dir,
    ]


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """A table of texts, whose first row is its head."""
    head = "".join(f'<th scope="col" style="text-align:left">{escape(text)}</th>' for text in rows[0])
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{escape(text)}</td>' for text in row) + "</tr>"
        for row in rows[1:]
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """The same as lines of text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


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
