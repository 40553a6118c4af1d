"""Where a run's time went, as it measured itself, and what would have been faster."""

from __future__ import annotations

from collections.abc import Callable

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.wording import duration, moment, percent, size

WORTH_SAYING = 0.2
LARGE_STEP = 256 << 10
SYNC_EVERY = 16
WORTH_HALVING = 0.9
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

    Half the bytes take half the time of an exchange, where a step sends much.
    """
    parts = seconds_by_phase(state)
    training, exchange = state.times.get("train", 0.0), parts["exchange"]
    if state.strategy != "sync" or exchange < WORTH_SAYING * training or exchange < 1.0:
        return ""
    sent = sum(worker.sent for worker in state.workers) / len(state.workers)
    step = state.sent_per_epoch / len(state.workers) / max(1, state.steps)
    others = faster(training - exchange, exchange, exchange / 2 if step >= LARGE_STEP else exchange, duration)
    return (
        f"of {duration(training)} of training, {duration(exchange)} went to exchanging gradients, {size(int(step))} a "
        f"step and worker at {size(int(sent / exchange))}/s. {others}"
    )


def faster(
    computing: float, exchange: float, halved: float, words: Callable[[float], str], what: str = "the same steps"
) -> str:
    """What other options would make of so many seconds of computing and of exchange, ``halved`` of it in bfloat16.

    An average every 16 steps takes a sixteenth.
    """
    half = (
        f"about {words(computing + halved)} with --compression bfloat16, or "
        if halved < WORTH_HALVING * exchange
        else ""
    )
    return (
        f"By these figures {what} would take {half}about {words(computing + exchange / SYNC_EVERY)} with --strategy "
        f"local --sync-every {SYNC_EVERY}; the weights are then not those of one process."
    )


def step_advice(exchange: float, halved: float, step: int, computing: float | None) -> str:
    """The same of one step of ``step`` bytes, from sums that were measured: as they are and, ``halved``, in bfloat16.

    ``computing`` are the seconds that such a step computes; where they are not known, it is said which ones matter.
    """
    told = f"A step under sync takes {moment(exchange)} to exchange {size(step)} of gradients"
    if computing is None:
        least = exchange * (1 - WORTH_SAYING) / WORTH_SAYING
        told += f", which is a fifth of its time or more if it computes for {moment(least)} or less"
        return f"{told}. {faster(0.0, exchange, halved, moment, 'the same exchange')}"
    whole = computing + exchange
    told += f"; one of the last run computes {moment(computing)}, so the exchange takes {percent(exchange / whole)}"
    return f"{told}. {faster(computing, exchange, halved, moment)}" if exchange >= WORTH_SAYING * whole else f"{told}."
