"""One trial: it answers what its cell asks, reports its epochs to the study, and ends where the study prunes it."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfos_magic.cluster.runs.outcome import INTERRUPT_WAITS
from tfos_magic.cluster.runs.request import RETURNED, Observer
from tfos_magic.cluster.runs.run import Run
from tfos_magic.cluster.runs.state import RunState
from tfos_magic.errors import CaptureError, RunInterrupted, UsageError, WorkerError
from tfos_magic.sweeps.metric import differ, number_of, why_none
from tfos_magic.sweeps.owners import ERROR, OWNER, STOPPED, owner
from tfos_magic.sweeps.search import Search, suggest
from tfos_magic.values.suggestions import Suggestion

if TYPE_CHECKING:
    import optuna
    from optuna.trial import TrialState


class Searching:
    """A search under way: its ``study``, which one thread at a time uses, and the ``best`` trial that has ended here.

    ``notices`` is what the user should know, each once; it is printed where nothing else shows it, ``aloud``.
    """

    def __init__(self, search: Search, study: optuna.Study, aloud: bool = False) -> None:
        self.search, self.study, self._aloud = search, study, aloud
        self.lock = threading.RLock()
        self.best: Trial | None = None
        self.notices: list[str] = []
        self.exhausted = False
        """Whether the sampler has tried all there is."""
        self.over = False
        """Whether the sweep has ended by itself before its last trial."""
        self._owner = owner()

    def say(self, text: str) -> None:
        """Let the user know, once."""
        if text not in self.notices:
            self.notices.append(text)
            if self._aloud:
                print(f"note: {text}", file=sys.stderr, flush=True)

    def ask(self) -> optuna.Trial:
        """The next trial of the study."""
        with self.lock:
            trial = self.study.ask()
            trial.set_user_attr(OWNER, self._owner)
            return trial

    def tell(self, trial: optuna.Trial, value: float | None, state: TrialState) -> None:
        """Tell the study how a trial ended. A sampler that is through, as a grid's, stops it: see ``exhausted``."""
        with self.lock:
            vars(self.study)["stop"] = self._exhaust  # the study's own is for ``Study.optimize`` alone
            try:
                self.study.tell(trial, value, state=state)
            finally:
                del vars(self.study)["stop"]

    def _exhaust(self) -> None:
        self.exhausted = True

    def beats(self, value: float) -> bool:
        """Whether a value is as good as those of all trials that have ended well: which of equal ones is the best one,
        the study says."""
        with self.lock:
            best = best_of(self.study)
            if best is None or best.value is None:
                return True
            return value >= best.value if self.search.direction == "maximize" else value <= best.value


class Trial(Observer):
    """A trial of ``searching``, whose ``run`` it watches; in the study it has a ``number`` once its cell asks.

    ``verdict`` is how it ended: ``complete``, ``pruned``, ``failed``, ``stopped``, ``spared`` where it was not
    needed, or empty. ``value`` is the number that the cell calls by the metric's name, else the
    metric in the last epoch that has it, ``curve`` its values by epochs trained; ``error`` is why it failed, as it is
    told. ``values`` are the names that it brought back, where it was the best.
    """

    run: Run

    def __init__(self, searching: Searching) -> None:
        self._searching = searching
        self._trial: optuna.Trial | None = None
        self._chosen: dict[str, Any] = {}
        self._asked: dict[str, Suggestion] = {}
        self._epochs = self._notices = 0
        self.curve: dict[int, float] = {}
        self.value: float | None = None
        self.verdict = self.error = ""
        self.values: dict[str, Any] = {}
        self.pruned = self.spared = False
        self.returned: list[str] = []
        """The names in what a function returned."""
        self.lacks_metric = False
        """Whether it failed because it reported no number by the metric's name."""
        self.changes = 0
        """Grows with what is shown of it."""

    def __repr__(self) -> str:
        number = "" if self.number is None else f" {self.number}"
        value = "" if self.value is None else f", {self._searching.search.metric} {self.value:g}"
        return f"<trial{number}: {self.verdict or self.run.phase.value}{value}, {self.params}>"

    @property
    def number(self) -> int | None:
        """Its number in the study, from 0; None before it begins."""
        return None if self._trial is None else self._trial.number

    @property
    def params(self) -> dict[str, Any]:
        """What was chosen for it so far, by name."""
        return self._chosen

    @property
    def trial(self) -> optuna.Trial:
        """The study's trial, asked for when it is needed first: what is chosen goes by the trials that have ended."""
        if self._trial is None:
            self._trial = self._searching.ask()
        return self._trial

    def answer(self, what: str, about: Mapping[str, Any]) -> Any:
        """What the cell asks: a value for a suggestion, or whether the names that it was asked for are wanted."""
        if what == "suggestion":
            return self._choose(Suggestion(**about))
        self.value = self._final(about)
        return self.value is not None and not self.pruned and self._searching.beats(self.value)

    def _choose(self, suggestion: Suggestion) -> Any:
        if self._asked.setdefault(suggestion.name, suggestion) != suggestion:
            raise UsageError(
                f"{suggestion.name!r} was asked for before in this trial, with other bounds or choices: give one of "
                "the two another name."
            )
        if self.spared:
            return suggestion.usual
        with self._searching.lock:
            value = suggest(self.trial, suggestion)
        if suggestion.name not in self._chosen:
            self._chosen = {**self._chosen, suggestion.name: value}
            told = f"{value:.4g}" if isinstance(value, float) else str(value)
            self.run.state.settings = {**self.run.state.settings, suggestion.name: told}
            self.changes += 1
        return value

    def update(self, state: RunState) -> None:
        """Report the epochs that have ended since; what an attempt trains again after a loss is reported once."""
        for text in state.notices[self._notices :]:
            if text != INTERRUPT_WAITS or not (self.pruned or self._searching.over):
                self._searching.say(text)
        self._notices = len(state.notices)
        epochs = [metrics for logs in state.fits.values() for metrics in logs.values()]
        if len(epochs) <= self._epochs:
            return
        while self._epochs < len(epochs) and not self.pruned:
            self._epochs += 1
            self._report(epochs[self._epochs - 1].get(self._searching.search.metric))
        self.changes += 1

    def _report(self, value: float | None) -> None:
        if value is None:
            return
        self.curve[self._epochs], self.value = value, value
        with self._searching.lock:
            self.trial.report(value, self._epochs)
            self.pruned = self.trial.should_prune()
        if self.pruned:
            self.run.ask_to_stop()

    def _final(self, values: Mapping[str, Any]) -> float | None:
        """The metric: what the cell calls so, else that of the last epoch that has it, or what a function returned."""
        metric = self._searching.search.metric
        result = values.get(RETURNED)
        named = result if isinstance(result, Mapping) else values
        if isinstance(result, Mapping):
            self.returned = list(map(str, result))
        own, returned = number_of(named.get(metric)), number_of(result)
        reported = next(reversed(self.curve.values()), None)
        if own is not None and differ(own, reported):
            self._searching.say(
                f"{metric} is set to a number of its own: trials are compared by that number, and pruned by the "
                f"{metric} of their epochs."
            )
        if returned is not None and differ(returned, reported):
            self._searching.say(
                f"Trials are compared by {metric} in their last epochs, not by the number that the function returns."
            )
        return own if own is not None else self.value if self.value is not None else returned

    def end(self, values: dict[str, Any], error: BaseException | None) -> None:
        """Tell the study how it ended, with the names that came back, or by what."""
        with self._searching.lock:
            self._judge(values, error)
        self.changes += 1

    def _judge(self, values: dict[str, Any], error: BaseException | None) -> None:
        if isinstance(error, CaptureError) and not self.pruned:  # it was trained: only names are missing
            self._searching.say(str(error))
            values, error = dict(error.values), None
        if self.spared or (isinstance(error, RunInterrupted) and not self.pruned):
            self._stop()
        elif self.pruned:
            self._tell("pruned", "PRUNED")
        elif error is not None:
            if isinstance(error, WorkerError):
                error.brought = ""  # the notebook gets the names of the best trial alone
            self._fail(str(error))
        elif (value := self._final(values)) is None:
            self.lacks_metric = True
            search, known = self._searching.search, self.run.state.metrics
            self._fail(why_none(search.metric, values, known, self.returned, search.text))
        elif math.isnan(value):
            self._fail(f"its {self._searching.search.metric} is not a number")
        else:
            self._complete(value, values)

    def spare(self) -> None:
        """It is not needed: other kernels have all that are left, or the sampler has tried all there is."""
        self.spared = True
        self.run.ask_to_stop()
        if self._trial is not None:
            self._withdraw()

    def _stop(self) -> None:
        if self._trial is not None and not self.verdict:
            self._withdraw()
        self.verdict = "spared" if self.spared else "stopped"

    def _withdraw(self) -> None:
        self.trial.set_user_attr(ERROR, STOPPED)
        self._tell("stopped", "FAIL")

    def _fail(self, why: str) -> None:
        self.error = why
        self.trial.set_user_attr(ERROR, why.split("\n", 1)[0])
        self._tell("failed", "FAIL")

    def _complete(self, value: float, values: dict[str, Any]) -> None:
        if unasked := self._searching.search.grid.keys() - self._chosen:
            self._searching.say(
                f"Not every trial asks for {', '.join(sorted(unasked))}, and points of the grid that differ only there "
                "are trained again and again: --sampler tpe or random, with --trials, chooses only what is asked for."
            )
        if self._searching.search.prunes and not self.curve:
            self._searching.say(
                f"No epoch reported {self._searching.search.metric}, so the pruner ends no trial early: it goes by the "
                "metrics of fit()."
            )
        self.value = value
        self._tell("complete", "COMPLETE", value)
        with self._searching.lock:
            best = best_of(self._searching.study)
        if best is not None and best.number == self.trial.number:
            if self._searching.best is not None:
                self._searching.best.values.clear()
            self._searching.best, self.values = self, values
        else:
            values.clear()

    def _tell(self, verdict: str, state: str, value: float | None = None) -> None:
        from optuna.trial import TrialState

        self.verdict = verdict
        self._searching.tell(self.trial, value, TrialState[state])


def best_of(study: optuna.Study) -> optuna.trial.FrozenTrial | None:
    """The best trial of a study; None where none has ended well."""
    try:
        return study.best_trial
    except ValueError:
        return None
