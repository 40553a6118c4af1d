"""The workers of a run in words, and which of them are in trouble."""

from __future__ import annotations

from collections.abc import Container
from statistics import median
from typing import NamedTuple

from tfos_magic.cluster.runs.state import RunPhase, RunState
from tfos_magic.cluster.runs.worker_state import WorkerState
from tfos_magic.notebook.views.wording import pace, percent, size

SLOW = 0.6
STEPS_BEHIND = 3
WAITING = 0.15
SILENT_SECONDS = 6.0
TROUBLED = 20
_ACTIVE = ("training", "validating")
_ENDS = ("done", "stopped", "failed")


class WorkerRow(NamedTuple):
    """One rank: where it is, its state, its share of the epoch (0 to 1), and in words its pace, its waits for data and
    for other ranks, and its memory. ``trouble`` is empty, or one or two words on what is wrong with it. Of one of many
    workers ``where`` and the rest may be left out."""

    rank: int
    where: str
    state: str
    step: str
    fraction: float
    pace: str
    data: str
    peers: str
    memory: str
    trouble: str


def straggler(state: RunState) -> int | None:
    """The rank that the others have waited for throughout the run, if there is one: it has waited far less itself.

    Under ``async`` they wait for servers.
    """
    if state.strategy == "async":
        return None
    training = state.times.get("train", 0.0)
    waits = {worker.rank: worker.peer_seconds / training for worker in state.workers if training}
    slowest = min(waits, key=waits.__getitem__, default=None)
    return slowest if slowest is not None and _is_awaited(waits[slowest], median(waits.values())) else None


def _is_awaited(wait: float, usual: float) -> bool:
    """Whether others wait for a worker, by its share of the time in waits for them and what is ``usual``."""
    return usual >= WAITING and wait < usual / 3


def worker_rows(state: RunState, detailed: Container[int] | None = None) -> list[WorkerRow]:
    """Put every worker in words, and after them every parameter server that the run uses.

    All is told of the ranks of ``detailed`` and of the first ones in trouble; None is of all.
    """
    norms = _Norms(state)
    servers = [_server(server, state) for server in (state.servers if state.strategy == "async" else [])]
    if detailed is None:
        return [_worker(worker, norms) for worker in state.workers] + servers
    rows, left = [], TROUBLED
    for worker in state.workers:
        trouble = _trouble(worker, norms)
        whole = worker.rank in detailed or bool(trouble and left)
        left -= bool(trouble and left)
        rows.append(_worker(worker, norms) if whole else _brief(worker, norms, trouble))
    return rows + servers


class _Norms:
    """What is usual among the workers that train, to measure each of them by, and where their run is."""

    def __init__(self, state: RunState) -> None:
        active = [worker for worker in state.workers if worker.state in _ACTIVE]
        self.lockstep, phase = state.strategy == "sync", state.phase
        self.ended, self.failed, self.running = phase.ended, phase is RunPhase.FAILED, phase is RunPhase.RUNNING
        self.pace = median([worker.rows_per_second for worker in active] or [0.0])
        self.peers = median([worker.peer_share for worker in active] or [0.0])
        self.place = median([_place(worker) for worker in active] or [0.0])
        self.seen = max((worker.seen for worker in active), default=0.0)

    def trouble(self, worker: WorkerState) -> str:
        """What is unusual about a worker. In lockstep all have one pace: there, the slow one is who others wait for."""
        if self.seen - worker.seen > SILENT_SECONDS:
            return "silent"
        if worker.rows_per_second < SLOW * self.pace:
            return "slow"
        if _is_awaited(worker.peer_share, self.peers):
            return "slow: others wait"
        if not self.lockstep and self.place - _place(worker) > STEPS_BEHIND / max(1, worker.steps):
            return "behind"
        return ""


def _place(worker: WorkerState) -> float:
    return worker.epoch + (worker.step / worker.steps if worker.steps else 0.0)


def _trouble(worker: WorkerState, norms: _Norms) -> str:
    if worker.state in ("lost", "failed"):
        return worker.state
    if _vanished(worker, norms):
        return "lost" if norms.failed and worker.pid else ""
    return norms.trouble(worker) if norms.running and worker.state in _ACTIVE else ""


def _vanished(worker: WorkerState, norms: _Norms) -> bool:
    """Whether the run has ended and nothing is known of this worker's end."""
    return norms.ended and worker.state not in (*_ENDS, "lost")


def _shown(worker: WorkerState, norms: _Norms, trouble: str) -> str:
    return (trouble or "ended") if _vanished(worker, norms) else worker.state


def _brief(worker: WorkerState, norms: _Norms, trouble: str) -> WorkerRow:
    shown = _shown(worker, norms, trouble)
    return WorkerRow(worker.rank, "", shown, "", _share(worker, 2), "", "", "", "", trouble)


def _worker(worker: WorkerState, norms: _Norms) -> WorkerRow:
    trouble = _trouble(worker, norms)
    place = f"{worker.host} · pid {worker.pid}" if worker.pid else worker.host
    return WorkerRow(
        rank=worker.rank,
        where=" · ".join(part for part in (place, worker.device) if part),
        state=_shown(worker, norms, trouble),
        step=f"{worker.step:,} of {worker.steps:,}" if worker.steps else f"{worker.step:,}" if worker.step else "",
        fraction=_share(worker),
        pace=pace(worker.rows_per_second),
        data=percent(worker.data_share),
        peers=percent(worker.peer_share),
        memory=size(worker.memory) if worker.memory else "",
        trouble=trouble,
    )


def _server(server: WorkerState, state: RunState) -> WorkerRow:
    lost = server.state == "lost"
    shown = server.state if lost or not state.phase.ended else "ended"
    return WorkerRow(
        rank=server.rank,
        where=f"parameter server · {server.host} · pid {server.pid}",
        state=shown,
        step="",
        fraction=0.0,
        pace="",
        data="",
        peers="",
        memory=size(server.memory) if server.memory else "",
        trouble="lost" if lost else "",
    )


def _share(worker: WorkerState, digits: int = 3) -> float:
    if worker.state == "done":
        return 1.0
    return round(min(1.0, worker.step / worker.steps), digits) if worker.steps else 0.0
