"""The runs of a sweep's trials, on whichever workers are free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tfos_magic.cluster.map_run import MapRun
from tfos_magic.cluster.runs.request import RunRequest
from tfos_magic.cluster.worker_group import WorkerGroup
from tfos_magic.sweeps.trial import Trial


class TrialRuns(MapRun):
    """The runs of ``trials``, each an item. Before each ``reserve`` says whether it is to be, and ``take_end`` is told
    how it ended: the names that it brought back, or its error."""

    def __init__(
        self,
        cluster: WorkerGroup,
        trials: Sequence[Trial],
        requests: Sequence[RunRequest],
        workers_per_trial: int,
        reserve: Callable[[Trial], bool],
        take_end: Callable[[Trial, dict[str, Any], BaseException | None], None],
    ) -> None:
        super().__init__(cluster, range(len(trials)), requests, workers_per_trial, trials)
        self._trials, self._reserve, self._take_end = trials, reserve, take_end
        for trial, run in zip(trials, self.runs, strict=True):
            trial.run = run

    def _execute(self, index: int) -> None:
        trial, values = self._trials[index], dict[str, Any]()
        error: BaseException | None = None
        if not (self.stopping or trial.spared or self._reserve(trial)):
            trial.spare()
        try:
            values = self.runs[index].execute()
        except BaseException as failure:  # told in the table
            error = failure
        self._take_end(trial, values, error)
        with self._changed:
            self._order.append(index)
            self._changed.notify_all()

    @property
    def stopping(self) -> bool:
        """Whether no more trials are begun."""
        return self._stopping.is_set()

    def abort(self) -> None:
        """Begin no more trials, and end those under way at their next steps; from any thread, without waiting."""
        self._stopping.set()
        for run in self.runs:
            if not run.done:
                run.ask_to_stop()
