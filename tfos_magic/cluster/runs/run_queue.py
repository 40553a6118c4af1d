"""Whose turn it is: runs have the workers one after another, in the order in which they were asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

TICK = 0.1

Queued = TypeVar("Queued")


class RunQueue(Generic[Queued]):
    """The runs that have the workers of one cluster or wait for them; the first has them."""

    def __init__(self) -> None:
        self._runs: list[Queued] = []
        self._changed = threading.Condition()
        self._callbacks: list[Callable[[Queued], object]] = []
        self._idle_since = time.monotonic()

    def on_join(self, callback: Callable[[Queued], object]) -> None:
        """Call ``callback`` with each run as it is asked for."""
        self._callbacks.append(callback)

    def join(self, run: Queued) -> None:
        """Stand behind all others."""
        with self._changed:
            self._runs.append(run)
        for callback in list(self._callbacks):
            callback(run)

    @contextmanager
    def left_on_error(self, run: Queued) -> Iterator[None]:
        """Let a run that cannot begin leave, so that the next one does."""
        try:
            yield
        except BaseException:
            self.leave(run)
            raise

    def leave(self, run: Queued) -> None:
        """Let the next one begin. Leaving twice is harmless."""
        with self._changed:
            if run in self._runs:
                self._runs.remove(run)
                self._idle_since = time.monotonic()
            self._changed.notify_all()

    @property
    def runs(self) -> list[Queued]:
        """All that have not ended, in their order."""
        with self._changed:
            return list(self._runs)

    def touch(self) -> None:
        """Count idleness from now."""
        with self._changed:
            self._idle_since = time.monotonic()

    def do_if_idle(self, seconds: float, action: Callable[[], object]) -> bool:
        """Do what makes later runs go elsewhere, where there was no run for so many ``seconds``; True when it was."""
        with self._changed:
            idle = not self._runs and time.monotonic() - self._idle_since >= seconds
            if idle:
                action()
            return idle

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
