"""A sweep that is told, not trained: its study and its trials are real, and the test moves their runs on."""

from __future__ import annotations

import math
import random
import time
from types import SimpleNamespace
from typing import Any

from tfos_magic.cluster.runs.state import RunPhase, RunState
from tfos_magic.errors import RunInterrupted, WorkerError
from tfos_magic.sweeps.search import Search
from tfos_magic.sweeps.sweep import Sweep
from tfos_magic.sweeps.trial import Searching, Trial

EPOCHS = 10
KINDS = ["relu", None, "a name that\nis long " * 9]


class ToldSweep(Sweep):
    """A search for the largest ``val_accuracy`` over a rate, a number of units and a kind of layer."""

    def __init__(self, trials: int, seed: int = 1, pruner: str = "asha") -> None:
        self.search = Search(trials, "val_accuracy", sampler="random", pruner=pruner, seed=seed)
        self.name, self.workers, self.places, self._best = "sweep", 2, 2, "model"
        self.study = self.search.study()
        self._searching, self._failure, self._fail_fast = Searching(self.search, self.study), None, False
        self._began = self._ended = time.monotonic()
        self.runs = SimpleNamespace(done=False, stopping=False, abort=lambda: None)  # type: ignore[assignment]
        self.trials = [self._trial(index) for index in range(trials)]

    def _trial(self, index: int) -> Trial:
        made = Trial(self._searching)
        state = RunState(f"r{index}", f"sweep {index}", "sync", [], started=time.monotonic())
        state.queue()
        made.run = SimpleNamespace(state=state, phase=RunPhase.QUEUED, ask_to_stop=lambda: None)  # type: ignore[assignment]
        return made

    def begin(self, index: int) -> Trial:
        """A trial asks for what it needs."""
        trial = self.trials[index]
        trial.run.state.begin()
        trial.run.phase = trial.run.state.phase = RunPhase.RUNNING  # type: ignore[misc]
        trial.run.state.planned = EPOCHS
        trial.answer("suggestion", {"name": "rate", "low": 1e-4, "high": 1e-1, "log": True})
        trial.answer("suggestion", {"name": "units", "low": 16, "high": 256, "step": 16, "whole": True})
        trial.answer("suggestion", {"name": "kind", "choices": KINDS})
        return trial

    def epoch(self, trial: Trial) -> None:
        """It reports an epoch."""
        done = len(trial.run.state.history) + 1
        distance = abs(math.log10(trial.params["rate"]) + 2)
        value = (0.97 - 0.1 * distance) * (1 - math.exp(-done / 3)) + random.Random(done).uniform(-0.01, 0.01)
        trial.run.state.history.append({"loss": 1.0 / done, "val_accuracy": value})
        trial.run.state.epochs_done.append(done - 1)
        trial.update(trial.run.state)

    def end(self, trial: Trial, error: BaseException | None = None) -> None:
        """It ends: well, pruned, or by an error."""
        error = RunInterrupted({}, "") if trial.pruned and error is None else error
        trial.run.phase = trial.run.state.phase = RunPhase.STOPPED if error else RunPhase.DONE  # type: ignore[misc]
        self.take_end(trial, {} if error else {"model": "the model"}, error)

    def play(self, count: int, failing: int = -1) -> None:
        """The first ``count`` trials, one after another; ``failing`` is the one that fails."""
        for index in range(count):
            trial = self.begin(index)
            while len(trial.run.state.history) < EPOCHS and not trial.pruned and index != failing:
                self.epoch(trial)
            self.end(trial, failure() if index == failing else None)

    def finish(self) -> None:
        """All have ended."""
        self.runs = SimpleNamespace(done=True, stopping=False)  # type: ignore[assignment]


def failure() -> Any:
    return WorkerError(
        "<b>units</b> must be even",
        rank=0,
        host="h",
        kind="ValueError",
        remote_traceback="Traceback\n  line 3 of <cell>",
    )
