"""A sweep as a handle: its study, its trials as they run, the best of them, and its end."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfos_magic.cluster.runs.request import RETURNED, RunRequest
from tfos_magic.cluster.runs.run import STOP_SECONDS
from tfos_magic.cluster.worker_group import WorkerGroup
from tfos_magic.errors import (
    CaptureError,
    ClusterError,
    DataError,
    FeedError,
    TrialError,
    UsageError,
    WorkerLost,
    did_you_mean,
)
from tfos_magic.sweeps.cell_text import refuse_without_model, sets
from tfos_magic.sweeps.owners import ended_trials, take_up, taken_trials
from tfos_magic.sweeps.search import Search
from tfos_magic.sweeps.trial import Searching, Trial, best_of
from tfos_magic.sweeps.trial_runs import TrialRuns
from tfos_magic.values import pack

if TYPE_CHECKING:
    import optuna
    import pandas


class Sweep:
    """What ``cluster.sweep`` gives: a search that goes on beside what its caller does.

    ``study`` is an ordinary study of Optuna's, told of each trial as it ends; ``trials`` are those of this sweep.
    :meth:`wait` waits for all of them, and ``best`` for the model of the best one, or what its function returned.
    """

    def __init__(
        self,
        cluster: WorkerGroup,
        request: RunRequest,
        search: Search,
        workers_per_trial: int,
        fail_fast: bool,
        best: str,
        aloud: bool = False,
    ) -> None:
        self.search, self.name, self._best, self._fail_fast = search, request.name, best, fail_fast
        self.study = search.study()
        self._searching = Searching(search, self.study, aloud)
        self.workers, self.places = cluster.size, cluster.size // workers_per_trial
        self._failure: BaseException | None = None
        self._began = self._ended = time.monotonic()
        self.trials = [Trial(self._searching) for _ in range(self._left())]
        payload = pack(request.names) if request.payload is None else request.payload
        requests = [
            replace(
                request,
                name=f"{request.name} {index}",
                answer=trial.answer,
                payload=payload,
                detached=True,
                log_dir=request.log_dir and f"{request.log_dir}/{index}",
            )
            for index, trial in enumerate(self.trials)
        ]
        self._tell_of_chance()
        self.runs = TrialRuns(cluster, self.trials, requests, workers_per_trial, self.reserve, self.take_end)

    def _left(self) -> int:
        """How many trials there are to be, those of an earlier sweep that are tried again among them."""
        left = self.search.size - ended_trials(self.study)
        if left < 1:
            raise UsageError(f"The study has its {self.search.size} trials: give more --trials to go on with it.")
        if again := take_up(self.study, left) if self.search.resume else 0:
            self._searching.say(f"{again} trials that were under way when the study was left are tried again.")
        return left

    def _tell_of_chance(self) -> None:
        if self.search.seed is not None and self.places > 1:
            self._searching.say(
                f"The seed makes each training repeatable, and not the search: with {self.places} trials at a time, "
                "what is chosen next goes by which have ended. One at a time, as with -n 1, all of it repeats itself."
            )

    def start(self) -> Sweep:
        """Go on in threads of its own."""
        self.runs.start()
        return self

    def __repr__(self) -> str:
        best = f", best {self.search.metric} {self.best_trial.value:g}" if self.best_trial else ""
        return f"<{self.name}: {self.count('complete', 'pruned', 'failed')} of {self.size} trials have ended{best}>"

    @property
    def size(self) -> int:
        """How many trials it has, without those that other kernels had in its place."""
        return len(self.trials) - self.count("spared")

    def count(self, *verdicts: str) -> int:
        """How many trials of this sweep have ended so."""
        return sum(trial.verdict in verdicts for trial in self.trials)

    @property
    def elapsed(self) -> float:
        """Seconds since it was asked for, up to the end of its last trial."""
        return (self._ended if self.done else time.monotonic()) - self._began

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end before all trials have."""
        return self.runs.stopping

    @property
    def notices(self) -> list[str]:
        """What the user should know, each once."""
        return list(self._searching.notices)

    @property
    def done(self) -> bool:
        """Whether it has ended, and the workers are free again."""
        return self.runs.done

    @property
    def error(self) -> BaseException | None:
        """What ended it before its time, or why none of its trials is of use; None while it goes on well."""
        failed = [trial for trial in self.trials if trial.verdict == "failed"]
        if self._failure is None and self.done and failed and not self.count("complete", "pruned"):
            why = f"{failed[0].error}\n\nNo trial of this sweep succeeded.{self._earlier()}"
            return TrialError(failed[0].number or 0, failed[0].params, why)
        return self._failure

    def _earlier(self) -> str:
        """What an earlier sweep of the study has found."""
        if (best := best_of(self.study)) is None:
            return ""
        return f" The best trial of its study is number {best.number}, with {self.search.metric} {best.value:g}."

    @property
    def best_trial(self) -> Trial | None:
        """The best trial of this sweep that has ended by now."""
        return self._searching.best

    @property
    def values(self) -> dict[str, Any]:
        """The names that the best trial has brought back."""
        return self.best_trial.values if self.best_trial else {}

    @property
    def best(self) -> Any:
        """The model of the best trial, trained, or what its function returned; waits for the end.

        Raises what :meth:`wait` raises, and :class:`CaptureError` where it is not there.
        """
        self.wait()
        return self.best_now()

    def best_now(self) -> Any:
        """As ``best``, of the trials that have ended by now."""
        name = self._best
        refuse_without_model(name)
        if name in self.values:
            return self.values[name]
        raise CaptureError(why_missing(self.study, self.trials))

    def wait(self, timeout: float | None = None) -> optuna.Study:
        """Wait for all trials and give the study.

        Raises :class:`TrialError` for a trial that failed, with ``fail_fast``, or where all did; what ended the sweep
        as a whole, such as :class:`DataError`; and TimeoutError after ``timeout`` seconds.
        """
        if not self.runs.await_end(timeout):
            raise TimeoutError(f"{self!r} after {timeout:g} s; it is still running.")
        if (error := self.error) is not None:
            raise error
        return self.study

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """End the trials under way at their next steps, and begin no other; what is done is kept. Waits for that."""
        self.runs.stop(timeout)

    def trials_dataframe(self) -> pandas.DataFrame:
        """The study's trials, as ``study.trials_dataframe()`` gives them."""
        return self.study.trials_dataframe()

    def reserve(self, trial: Trial) -> bool:
        """Give a trial its number where others may search in the study too; False where they have all that are left."""
        most = self.search.size
        if self.search.storage is None or (
            taken_trials(self.study) < most and taken_trials(self.study, trial.trial.number) < most
        ):
            return True
        whole = ended_trials(self.study) >= most
        self._searching.say(
            f"The study has its {most} trials, with those of other kernels."
            if whole
            else "Other kernels have the last trials of the study under way: if they do not end them, --resume does."
        )
        return False

    def take_end(self, trial: Trial, values: dict[str, Any], error: BaseException | None) -> None:
        """Take how a trial ended, and end the sweep where the failure is of all, or the first is to end it."""
        self._ended = time.monotonic()
        try:
            trial.end(values, error)
        except Exception as failure:  # of the study's storage, which no other trial could tell its end either
            self._fail(failure)
        if trial.verdict == "failed":
            self._heed(trial, error)
        if self._searching.exhausted:
            self._spare_those_left()
        if all(each.verdict for each in self.trials):
            self._tell_of_better()
            if self.count("complete") > 1 and not any(each.params for each in self.trials):
                self._searching.say("No trial asked for a value by tfos.suggest_…: they differ by chance alone.")

    def _spare_those_left(self) -> None:
        left = [trial for trial in self.trials if not (trial.verdict or trial.spared)]
        for trial in left:
            trial.spare()
        if left:
            self._searching.say(f"The sampler has tried all that there is: {len(left)} trials were not needed.")

    def _tell_of_better(self) -> None:
        """Let the user know of a better trial that another sweep of the study has had."""
        mine, better = self.best_trial, best_of(self.study)
        if better is None or better.number in {trial.number for trial in self.trials}:
            return
        here = (
            "No trial of this sweep is better, so it gives no model."
            if mine is None
            else f"This sweep's best, and the model that it gives, is number {mine.number}."
        )
        self._searching.say(
            f"The best trial of the study is number {better.number}, of another sweep, with {self.search.metric} "
            f"{better.value:g}. {here}"
        )

    def _heed(self, trial: Trial, error: BaseException | None) -> None:
        is_of_all = isinstance(error, DataError | FeedError | ClusterError) and not isinstance(error, WorkerLost)
        if error is not None and is_of_all:
            self._fail(error)
        elif self._fail_fast or self._is_mistyped():
            self._fail(TrialError(trial.number or 0, trial.params, trial.error))

    def _is_mistyped(self) -> bool:
        """Whether no trial can have the metric: the first have not, and neither does the cell set it by its name."""
        metric, ended = self.search.metric, [trial for trial in self.trials if trial.verdict]
        if len(ended) < max(2, self.places) or not all(trial.lacks_metric for trial in ended):
            return False
        if self._best == RETURNED:  # a number that a function may return, or not
            return bool(did_you_mean(metric, [*ended[0].run.state.metrics, *ended[0].returned], ""))
        return not sets(self.search.text, metric)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure, self._searching.over = error, True
            self.runs.abort()


def why_missing(study: optuna.Study, mine: Collection[Trial] = ()) -> str:
    """Why the model and other names of the best trial are not here, to a sweep with the trials ``mine``."""
    best = best_of(study)
    if best is None:
        return "No trial has succeeded."
    here = best.number in {trial.number for trial in mine}
    why = "whose model did not come" if here else "of another sweep, whose model and names were not kept"
    return f"The best trial is number {best.number}, {why}. Train the cell again with its parameters: {best.params}."
