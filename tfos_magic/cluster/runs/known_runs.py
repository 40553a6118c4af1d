"""The runs of a notebook, those that go on and those that have ended."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from tfos_magic.cluster.runs.run import Run
from tfos_magic.cluster.runs.run_queue import RunQueue
from tfos_magic.cluster.runs.state import RunState
from tfos_magic.errors import UsageError, did_you_mean

KEPT = 200


class RunNames:
    """Names for the runs of a process, each given once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._given: set[str] = set()

    def give(self, name: str = "") -> str:
        """That name, or with a number where it was given before; a run that has none is a numbered ``run``."""
        with self._lock:
            while (called := self._next(name)) in self._given:
                pass
            self._given.add(called)
            return called

    def _next(self, name: str) -> str:
        self._counts[name] += 1
        count = self._counts[name]
        return name if name and count == 1 else f"{name or 'run'} {count}"


NAMES = RunNames()
"""Those of this process."""


class EndedRun:
    """A run that has ended, without the values that it brought back: as much of its handle as is shown."""

    done = True

    def __init__(self, run: Run) -> None:
        self.run_id, self.name, self.state = run.run_id, run.name, run.state

    def on_change(self, callback: Callable[[EndedRun], object]) -> Callable[[], None]:
        """It changes no more: this is its end."""
        callback(self)
        return lambda: None

    def ask_to_stop(self) -> None:
        """It has ended."""


class KnownRuns:
    """The last runs of all that join ``queue``, oldest first, but for cells that each worker ran by itself."""

    def __init__(self, queue: RunQueue[Any]) -> None:
        self._runs: list[Run | EndedRun] = []
        self._callbacks: list[Callable[[Run], object]] = []
        queue.on_join(self._add)

    def on_new(self, callback: Callable[[Run], object]) -> Callable[[], None]:
        """Call ``callback`` with each run that is asked for from now on, until what this gives is called."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    @property
    def runs(self) -> list[Run | EndedRun]:
        """All that are known."""
        return list(self._runs)

    @property
    def states(self) -> list[RunState]:
        """How they went so far."""
        return [run.state for run in self._runs]

    def find(self, name: str) -> Run | EndedRun:
        """The run called ``name``, or the one with that number, from 1. Raises :class:`UsageError`."""
        places = [place for place, run in enumerate(self._runs) if run.name == name]
        if len(places) > 1:
            numbers = ", ".join(str(place + 1) for place in places)
            raise UsageError(
                f"{len(places)} runs are called {name!r}: choose one by its number in %tfos runs, {numbers}."
            )
        if places:
            return self._runs[places[0]]
        if name.isdigit() and 1 <= int(name) <= len(self._runs):
            return self._runs[int(name) - 1]
        hint = did_you_mean(name, [run.name for run in self._runs], "%tfos runs lists them.")
        raise UsageError(f"There is no run {name!r}. {hint}")

    def _add(self, queued: Any) -> None:
        if queued.request.alone:
            return
        # What runs brought back is the notebook's to keep.
        known = [EndedRun(run) if isinstance(run, Run) and run.done else run for run in self._runs]
        self._runs = [*known, *queued.runs][-KEPT:]
        for run in queued.runs:
            for callback in list(self._callbacks):
                callback(run)
