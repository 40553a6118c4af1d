"""Where a run's time went, as it measured itself, and what would have been faster."""

from __future__ import annotations

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.wording import duration, size

WORTH_SAYING = 0.2
LARGE_STEP = 256 << 10
SYNC_EVERY = 16
WAITING = "wait for others"


def seconds_by_phase(state: RunState) -> dict[str, float]:
    """Where the time went, in seconds, in order.

    What ranks waited within training, on the average, is told apart from it where it was measured.
    """
    times = state.times
    workers = max(1, len(state.workers))
    fed = sum(feed.seconds for feed in state.feeds.values() if not feed.reused)
    training = times.get("train", 0.0)
    data = min(training, sum(worker.data_seconds for worker in state.workers) / workers)
    exchange = min(training - data, sum(worker.exchange_seconds for worker in state.workers) / workers)
    peers = min(training - data - exchange, sum(worker.peer_seconds for worker in state.workers) / workers)
    return {
        "start": max(0.0, times.get("start", 0.0) - fed),
        "feed": fed,
        "prepare": times.get("cell", 0.0),
        "compute" if data or exchange or peers else "train": training - data - exchange - peers,
        "wait for data": data,
        "exchange": exchange,
        WAITING: peers,
        "validate": times.get("validate", 0.0),
        "checkpoint": times.get("checkpoint", 0.0),
        "rest of the cell": times.get("rest", 0.0),
    }


def told(state: RunState) -> list[str]:
    """The run's notices, and at its end what would have been faster."""
    return [*state.notices, *([text] if state.phase.ended and (text := advice(state)) else [])]


def advice(state: RunState) -> str:
    """Which options would have made training under ``sync`` faster, and by how much; empty where none would by a fifth.

    Half the bytes take half the time of an exchange, where a step sends much; an average every 16 steps a sixteenth.
    """
    parts = seconds_by_phase(state)
    training, exchange = state.times.get("train", 0.0), parts["exchange"]
    if state.strategy != "sync" or exchange < WORTH_SAYING * training or exchange < 1.0:
        return ""
    sent = sum(worker.sent for worker in state.workers) / len(state.workers)
    step = state.sent_per_epoch / len(state.workers) / max(1, state.steps)
    halved = f"--compression bfloat16 about {duration(training - exchange / 2)}, " if step >= LARGE_STEP else ""
    seldom = duration(training - exchange + exchange / SYNC_EVERY)
    return (
        f"of {duration(training)} of training, {duration(exchange)} went to exchanging gradients, {size(int(step))} a "
        f"step and worker at {size(int(sent / exchange))}/s. By these figures {halved}--strategy local --sync-every "
        f"{SYNC_EVERY} about {seldom} would do for the same steps; the weights are then not those of one process."
    )
