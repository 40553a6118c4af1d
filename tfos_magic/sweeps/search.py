"""What is searched for, and the study that searches: its sampler, its pruner, its storage."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from tfos_magic.cluster.runs.request import SEEDS
from tfos_magic.errors import UsageError, did_you_mean
from tfos_magic.values.suggestions import Suggestion, suggestions_in

if TYPE_CHECKING:
    import optuna

SAMPLERS = ("tpe", "random", "grid", "cmaes")
PRUNERS = ("asha", "median", "none")
DIRECTIONS = ("maximize", "minimize")
STUDY = "tfos_sweep"
METRIC = "tfos_metric"
"""Attribute of a study: what its values are of."""

AGAIN_SECONDS = 1.0

_UNSURE = re.compile(
    r"(^|_)(neg|negative|minus|inverse|no|non|anti)_|drop|gain|improv|change|delta|diff|reduc|profit|lossless"
    r"|brier|crps|hamming|dice|anomal|inaccura|accident|accumul|cost|regret|penalty|(^|_)fid(_|$)"
)
"""What turns the sense of another word round, or may."""
_FALLING = re.compile(r"loss|error|entropy|perplexity|hinge|poisson|diverg|distance|(^|_)(r?m[as]p?l?e|err|kld?)(_|$)")
_GROWING = re.compile(
    r"acc|auc|precision|recall|f1|fbeta|iou|io_u|(^|_)r2(_|$)|score|similarity|ndcg|specific|sensitiv"
)


@dataclass(frozen=True)
class Search:
    """``trials`` trials for the best ``metric``: the largest, or the smallest, as ``direction`` says or its name does.

    ``sampler`` and ``pruner`` are names of :data:`SAMPLERS` and :data:`PRUNERS`, or objects of Optuna's; a grid is that
    of the ``tfos.suggest_*`` calls in ``text``, and of as many trials as it has points where ``trials`` is 0.
    ``storage`` is a URL, or an object of Optuna's; a study called ``study_name`` that is there goes on with ``resume``
    until it has ``trials`` in all. ``seed`` seeds the sampler.

    Raises :class:`UsageError` for what does not fit, and where Optuna is not there.
    """

    trials: int
    metric: str
    direction: str = ""
    sampler: Any = "tpe"
    pruner: Any = "none"
    storage: Any = None
    study_name: str = ""
    resume: bool = False
    seed: int | None = None
    text: str = ""

    def __post_init__(self) -> None:
        optuna_module()
        if not self.metric:
            raise UsageError("Say what to optimise: --metric val_accuracy, or metric='val_accuracy'.")
        if self.direction not in ("", *DIRECTIONS):
            raise UsageError(f"direction is {self.direction!r}: give maximize or minimize.")
        if self.resume and self.storage is None:
            raise UsageError("--resume needs the study's storage: add --storage sqlite:///study.db.")
        if isinstance(self.trials, bool) or not isinstance(self.trials, int) or self.trials < (self.sampler != "grid"):
            raise UsageError(f"trials is {self.trials!r}: give a number, such as --trials 40.")
        object.__setattr__(self, "direction", self.direction or direction_of(self.metric))

    @property
    def grid(self) -> dict[str, list[Any]]:
        """All values of all that the text suggests; empty where the sampler is another. Raises :class:`UsageError`."""
        if self.sampler != "grid":
            return {}
        found = {name: _values_of(each) for name, each in suggestions_in(self.text).items()}
        if not found:
            raise UsageError(
                "A grid is made of calls like tfos.suggest_int('units', 16, 64, step=16), with the name and the "
                "numbers written out: the cell has none. A loop or a function of yours needs another --sampler."
            )
        return found

    @property
    def aim(self) -> str:
        """What is searched for, in words."""
        return f"Searching for the {'largest' if self.direction == 'maximize' else 'smallest'} {self.metric}."

    @property
    def prunes(self) -> bool:
        """Whether trials may be ended early."""
        return self.pruner != "none" and not isinstance(self.pruner, optuna_module().pruners.NopPruner)

    @property
    def size(self) -> int:
        """How many trials there are to be in all."""
        if self.sampler == "grid":
            points = prod(map(len, self.grid.values()))
            return min(self.trials or points, points)
        grids = getattr(self.sampler, "_all_grids", None)  # of a GridSampler of the user's own
        return min(self.trials, len(grids)) if isinstance(grids, list) else self.trials

    def study(self) -> optuna.Study:
        """The study, new or gone on with. Raises :class:`UsageError` where there is one by its name already."""
        optuna = optuna_module()
        made = {"direction": self.direction, "sampler": self._sampler(), "pruner": self._pruner()}
        name = self.study_name or (STUDY if self.storage is not None else None)
        with _quiet():
            try:
                study = _created(storage=self.storage, study_name=name, load_if_exists=self.resume, **made)
            except optuna.exceptions.DuplicatedStudyError:
                raise UsageError(
                    f"There is a study {name!r} already: --resume goes on with it, --study names another."
                ) from None
            except Exception as error:  # of SQLAlchemy, of its driver, or of Optuna
                if not isinstance(self.storage, str):
                    raise
                raise UsageError(_without_storage(self.storage, error)) from error
        if (found := study.direction.name.lower()) != self.direction:
            raise UsageError(
                f"The study {name!r} is to {found}, not to {self.direction}: --direction {found} goes on with it, "
                "--study names another."
            )
        if (known := study.user_attrs.get(METRIC, self.metric)) != self.metric:
            raise UsageError(
                f"The study {name!r} is of {known}, not of {self.metric}: --metric {known} goes on with it, --study "
                "names another."
            )
        study.set_user_attr(METRIC, self.metric)
        study.sampler = self._sampler(len(study.get_trials(deepcopy=False)))
        return study

    def _sampler(self, begun: int = 0) -> Any:
        """The sampler of a study of so many trials: by the same seed it does not choose the same ones again."""
        samplers = optuna_module().samplers
        if self.sampler == "grid":
            return samplers.GridSampler(self.grid, seed=self.seed)
        known = {"tpe": samplers.TPESampler, "random": samplers.RandomSampler, "cmaes": samplers.CmaEsSampler}
        return _object("sampler", self.sampler, samplers.BaseSampler, SAMPLERS) or known[self.sampler](
            seed=None if self.seed is None else (self.seed + begun) % SEEDS
        )

    def _pruner(self) -> Any:
        pruners = optuna_module().pruners
        if (given := _object("pruner", self.pruner, pruners.BasePruner, PRUNERS)) is not None:
            return given
        made = {
            # Rungs after 1, 3, 9, … epochs; a third of the trials that come to one goes on.
            "asha": lambda: pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
            "median": pruners.MedianPruner,
            "none": pruners.NopPruner,
        }
        return made[self.pruner]()


def optuna_module() -> Any:
    """Optuna. Raises :class:`UsageError` where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise UsageError(
            "A sweep needs Optuna in the notebook's environment: pip install optuna, or tfos_magic's extra sweep."
        ) from None
    return optuna


def direction_of(metric: str) -> str:
    """What is better of a metric, as its name says. Raises :class:`UsageError` where it does not."""
    name = metric.lower()
    if not _UNSURE.search(name):
        if _FALLING.search(name):
            return "minimize"
        if _GROWING.search(name):
            return "maximize"
    raise UsageError(
        f"Whether more of {metric!r} is better, its name does not tell: add --direction maximize or minimize."
    )


def suggest(trial: optuna.Trial, suggestion: Suggestion) -> Any:
    """The value that the study has for a suggestion, as the method of the trial of that name gives it."""
    name, low, high, log = suggestion.name, suggestion.low, suggestion.high, suggestion.log
    if suggestion.choices:
        try:
            return trial.suggest_categorical(name, suggestion.choices)
        except ValueError as error:  # unlike bounds, choices may not change from trial to trial
            raise UsageError(f"{name!r} must have the same choices in each trial ({error}).") from None
    if suggestion.whole:
        return trial.suggest_int(name, int(low), int(high), step=int(suggestion.step or 1), log=log)
    return trial.suggest_float(name, low, high, step=suggestion.step, log=log)


def _object(what: str, given: Any, kind: type, names: tuple[str, ...]) -> Any:
    """The sampler or pruner where an object was given, None for one of the names. Raises :class:`UsageError`."""
    if isinstance(given, kind):
        return given
    if given in names:
        return None
    hint = did_you_mean(str(given), names, f"There are {', '.join(names)}, or a name that holds an Optuna object.")
    raise UsageError(f"There is no {what} {given!r}. {hint}")


def _values_of(suggestion: Suggestion) -> list[Any]:
    if suggestion.choices:
        return list(suggestion.choices)
    if suggestion.step is None and not suggestion.whole:
        raise UsageError(f"A grid needs values to try for {suggestion.name!r}: give it a step, or choices.")
    return suggestion.steps if suggestion.step is not None else replace(suggestion, step=1, log=False).steps


def _created(**asked: Any) -> optuna.Study:
    """The study; tried once more where another kernel makes the tables of the same new database at this moment."""
    create, duplicated = optuna_module().create_study, optuna_module().exceptions.DuplicatedStudyError
    try:
        return create(**asked)
    except duplicated:
        raise
    except Exception as error:
        if not re.search(r"UNIQUE constraint|already exists|database is locked|Duplicate", str(error)):
            raise
    time.sleep(AGAIN_SECONDS)
    return create(**asked)


def _without_storage(storage: str, error: Exception) -> str:
    """Why there is no study at a URL, of which no password is shown."""
    why = str(error).strip().split("\n", 1)[0]
    told = re.sub(r"//[^/@]*@", "//…@", f"A study cannot be kept at {storage}: {why}")
    return f"{told.rstrip('.')}. Give a URL of a database, such as sqlite:///study.db in a folder that is there."


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's line on a new study."""
    logging = optuna_module().logging
    level = logging.get_verbosity()
    logging.set_verbosity(max(level, logging.WARNING))
    try:
        yield
    finally:
        logging.set_verbosity(level)
