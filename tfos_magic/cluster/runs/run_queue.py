"""Whose turn it is: runs have the workers one after another, in the order in which they were asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

TICK = 0.1

Queued = TypeVar("Queued")


class RunQueue(Generic[Queued]):
    """The runs that have the workers of one cluster or wait for them; the first has them."""

    def __init__(self) -> None:
        self._runs: list[Queued] = []
        self._changed = threading.Condition()
        self._callbacks: list[Callable[[Queued], object]] = []

    def on_join(self, callback: Callable[[Queued], object]) -> None:
        """Call ``callback`` with each run as it is asked for."""
        self._callbacks.append(callback)

    def join(self, run: Queued) -> None:
        """Stand behind all others."""
        with self._changed:
            self._runs.append(run)
        for callback in list(self._callbacks):
            callback(run)

    def leave(self, run: Queued) -> None:
        """Let the next one begin. Leaving twice is harmless."""
        with self._changed:
            if run in self._runs:
                self._runs.remove(run)
            self._changed.notify_all()

    @property
    def runs(self) -> list[Queued]:
        """All that have not ended, in their order."""
        with self._changed:
            return list(self._runs)

    def ahead(self, run: Queued) -> int:
        """How many have the workers before it."""
        with self._changed:
            return self._runs.index(run) if run in self._runs else 0

    def await_turn(self, run: Queued, meanwhile: Callable[[], None]) -> None:
        """Wait until the workers are the run's own, and call ``meanwhile`` now and then; it may raise."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._runs[:1] == [run], TICK):
                    return
            meanwhile()
