"""Telling the notebook how far this rank is, often enough to look alive and seldom enough to cost nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any

from tfos_magic.transport.messages import EpochEnd, Message, Notice, Progress

SECONDS_BETWEEN = 0.25
MOST_A_SECOND = 1000
"""So many messages of progress come to the kernel from all ranks together: one thread hears them."""


def seconds_between(rank: int, ranks: int) -> float:
    """Seconds from one message of progress to the next; rank 0, whose metrics are shown, is as quick in any company."""
    return SECONDS_BETWEEN if rank == 0 else max(SECONDS_BETWEEN, ranks / MOST_A_SECOND)


class Reporter:
    """Emits this rank's messages: ``Progress`` at most each ``seconds_between`` seconds, unless forced.

    ``rows`` and ``sent`` give counts so far, ``waits`` the seconds waited for data, waited for peers, and
    of exchanges with them.
    """

    def __init__(
        self,
        run_id: str,
        rank: int,
        emit: Callable[[Message], None],
        rows: Callable[[], int],
        sent: Callable[[], int] = lambda: 0,
        waits: Callable[[], tuple[float, float, float]] = lambda: (0.0, 0.0, 0.0),
        ranks: int = 1,
    ) -> None:
        self.run_id = run_id
        self.rank = rank
        self._emit = emit
        self._rows = rows
        self._sent = sent
        self._sent_before = sent()
        self._waits = waits
        self._peers_before = waits()[1:]
        self._last, self._between = 0.0, seconds_between(rank, ranks)
        self._noticed: set[str] = set()
        self._late: list[str] = []
        self._fit = -1

    def begin_fit(self) -> None:
        """The next ``fit`` of the cell begins."""
        self._fit += 1

    def due(self) -> bool:
        return time.monotonic() - self._last >= self._between

    def progress(
        self, phase: str, *, epoch: int, epochs: int, step: int, steps: int, metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Report where the rank is; reads the row counter and the metrics from the device."""
        self._last = time.monotonic()
        values = numbers(metrics or {})
        data, *peers = self._waits()
        waited, exchanged = (now - before for now, before in zip(peers, self._peers_before, strict=True))
        rows = self._rows()
        if rows:
            self.settle()
        self._emit(
            Progress(
                self.run_id,
                self.rank,
                phase,
                epoch,
                epochs,
                step,
                steps,
                rows,
                values,
                self._sent() - self._sent_before,
                data,
                waited,
                exchanged,
                self._fit,
            )
        )

    def epoch_end(self, epoch: int, epochs: int, metrics: Mapping[str, Any]) -> None:
        if self.rank == 0:
            self._emit(EpochEnd(self.run_id, self.rank, epoch, epochs, numbers(metrics), fit=self._fit))

    def past_epochs(self, epochs: int, logs: Mapping[int, Mapping[str, Any]]) -> None:
        """Say again what ``fit`` recorded before this attempt: its ``logs`` by epoch."""
        for epoch, metrics in logs.items() if self.rank == 0 else ():
            self._emit(EpochEnd(self.run_id, self.rank, epoch, epochs, numbers(metrics), past=True, fit=self._fit))

    def notice(self, text: str) -> None:
        """Say once in a run, and from rank 0 only, what the user should know."""
        if self.rank == 0 and text not in self._noticed:
            self._noticed.add(text)
            self._emit(Notice(self.run_id, self.rank, text))

    def notice_late(self, text: str) -> None:
        """As :meth:`notice`, once rows were trained or the cell has ended: beside an error it would lead astray."""
        self._late.append(text)

    def settle(self) -> None:
        """Say what was to be said late."""
        while self._late:
            self.notice(self._late.pop(0))


def flat(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Keras logs without the dicts in them, such as the result of all compiled metrics, as ``fit`` shows them."""
    values: dict[str, Any] = {}
    for name, value in logs.items():
        values.update(flat(value) if isinstance(value, Mapping) else {name: value})
    return values


def nested(logs: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The ``values`` by name in the dicts that ``logs`` has them in, by which Keras orders its history."""
    return {n: nested(value, values) if isinstance(value, Mapping) else values[n] for n, value in logs.items()}


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The scalars of Keras logs as Python floats; anything else is left out."""
    values = {name: value.numpy() if hasattr(value, "numpy") else value for name, value in flat(metrics).items()}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, Number) or getattr(value, "shape", 1) == ()
    }
