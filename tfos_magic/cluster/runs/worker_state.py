"""What is known of one worker in a run, folded from what it says."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tfos_magic.transport.messages import Progress

LOG_LINES = 200
LINE_CHARACTERS = 10_000


@dataclass
class WorkerState:
    """One rank: who and where it is, what it is doing, and its pace (rows per second over the last seconds).

    ``sent`` counts the bytes that it sent to other ranks and to servers for training. ``data_share`` and ``peer_share``
    are the shares of the last seconds (0 to 1) that it waited for its next batch, and for other ranks; ``data_seconds``
    and ``peer_seconds`` are what these waits came to since the run began, ``exchange_seconds`` what it took from there
    to exchange gradients and the like. ``seen`` is when it last told where it is.
    ``metrics`` are its running values, over the ``epoch_rows`` rows that it has seen in this epoch. ``log`` holds its
    last lines, ``log_order`` their places among all lines of the run.
    """

    rank: int
    host: str = ""
    pid: int = 0
    device: str = "cpu"
    state: str = "waiting"
    epoch: int = 0
    step: int = 0
    steps: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    memory: int = 0
    sent: int = 0
    data_seconds: float = 0.0
    peer_seconds: float = 0.0
    exchange_seconds: float = 0.0
    data_share: float = 0.0
    peer_share: float = 0.0
    seen: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    epoch_rows: int = 0
    _rows_before: int = field(default=0, repr=False)
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    log_order: deque[int] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    _marks: deque[tuple[float, int, float, float]] = field(default_factory=lambda: deque(maxlen=16), repr=False)

    def forget_pace(self) -> None:
        """The count of rows begins anew."""
        self._marks.clear()

    def mark(self, now: float, message: Progress) -> None:
        """Note where it is, and derive its pace and its waits from the oldest mark kept."""
        if message.epoch != self.epoch or message.rows < self.rows:
            self._rows_before = min(self.rows, message.rows)
        self.epoch_rows = message.rows - self._rows_before
        self.metrics = dict(message.metrics)
        self.epoch, self.step, self.steps, self.rows = message.epoch, message.step, message.steps, message.rows
        self.sent, self.seen = message.sent, now
        self.data_seconds, self.peer_seconds = message.data_seconds, message.peer_seconds
        self.exchange_seconds = message.exchange_seconds
        self._marks.append((now, message.rows, message.data_seconds, message.peer_seconds))
        then, rows, data, peers = self._marks[0]
        if now > then:
            self.rows_per_second = (message.rows - rows) / (now - then)
            self.data_share = min(1.0, max(0.0, (message.data_seconds - data) / (now - then)))
            self.peer_share = min(1.0, max(0.0, (message.peer_seconds - peers) / (now - then)))

    def print(self, line: str, order: int) -> None:
        """Note a line, the ``order``-th of the run; of a very long one the last part."""
        self.log.append(line[-LINE_CHARACTERS:])
        self.log_order.append(order)


def over_workers(workers: Sequence[WorkerState], message: Progress) -> dict[str, float]:
    """What rank 0 has in this epoch so far, averaged over the workers by the rows that each has seen in it."""
    there = [worker for worker in workers if worker.epoch == message.epoch and worker.epoch_rows > 0]
    averaged = dict(message.metrics)
    for name in averaged:
        samples = [(w.metrics[name], w.epoch_rows) for w in there if math.isfinite(w.metrics.get(name, math.nan))]
        if samples:
            averaged[name] = sum(value * rows for value, rows in samples) / sum(rows for _, rows in samples)
    return averaged
