"""Whose turn it is: runs have the workers one after another, in the order in which they were asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable

TICK = 0.1


class RunQueue:
    """The runs that have the workers of one cluster or wait for them, by their ids; the first has them."""

    def __init__(self) -> None:
        self._runs: list[str] = []
        self._changed = threading.Condition()

    def join(self, run_id: str) -> None:
        """Stand behind all others."""
        with self._changed:
            self._runs.append(run_id)

    def leave(self, run_id: str) -> None:
        """Let the next one begin. Leaving twice is harmless."""
        with self._changed:
            if run_id in self._runs:
                self._runs.remove(run_id)
            self._changed.notify_all()

    @property
    def first(self) -> str:
        """The run that has the workers, or is about to; empty where none does."""
        with self._changed:
            return self._runs[0] if self._runs else ""

    def await_turn(self, run_id: str, meanwhile: Callable[[], None]) -> None:
        """Wait until the workers are the run's own, and call ``meanwhile`` now and then; it may raise."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._runs[:1] == [run_id], TICK):
                    return
            meanwhile()
