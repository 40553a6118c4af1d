"""One trial of a step, now or as it will be later on, and the laws of what it computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from tfos_magic.errors import ClusterError, TrainingError
from tfos_magic.training.firststep.batches import Tried, contrasted
from tfos_magic.training.firststep.laws import Law, StepValues, agreed, laws_of
from tfos_magic.training.firststep.step_trial import StepTrial
from tfos_magic.training.firststep.words import KINDS, of_gradients_by_metrics

FLOOR = 1e-3
"""A gradient's differences are measured by the largest gradient where its own are this much smaller."""

IN_FLOAT64 = 2e-6
"""What rounding may make in a trial in float64, from weights in float32."""
ROUNDINGS, ROUNDED = 32.0, 1e-6
"""A gradient is rounding where it is at most so many times what it changes by with the loss's scale, and this change at
most such a part of the largest gradient."""
SCALES = (1.37, 1.73)

Laws = dict[Any, Law]
_GRADIENTS = ("gradient", "applied")
_SAME = (Law.CONSTANT, Law.UNKNOWN)


def mixed(laws: Laws) -> bool:
    """Whether a step mixes rows on their way to the weights."""
    return any(law is Law.MIXED and name[0] in KINDS for name, law in laws.items())


def held_to(before: Laws, laws: Laws) -> Laws:
    """The ``laws`` of a later step; what weights are made of is mixed where the step goes by another law ``before``."""

    def held(name: Any, law: Law) -> Law:
        old = before.get(name, Law.UNKNOWN)
        if name[0] not in KINDS or law is old:
            return law
        if law in _SAME:
            return old
        is_new = law is Law.SUM or (name[0] == "statistic" and old in _SAME)  # which is not scaled, or not exchanged
        return Law.MIXED if is_new else agreed([old, law])

    return {name: held(name, law) for name, law in laws.items()}


def still(laws: Laws) -> list[Any]:
    """The names of statistics that these rows do not change, or not by what they hold."""
    return [name for name, law in laws.items() if name[0] == "statistic" and law in _SAME]


def completed(laws: Laws, others: Laws, names: Sequence[Any] | None = None) -> Laws:
    """The ``laws``, those that are unknown, or have these ``names``, as ``others`` show them. Where statistics change
    only there, what mixes rows beside them does so in ``laws`` as well: a step may go by its new statistics."""
    names = [name for name, law in laws.items() if law is Law.UNKNOWN] if names is None else names
    found = {name: agreed([laws[name], others.get(name, Law.UNKNOWN)]) for name in names}
    if any(name[0] == "statistic" and law not in _SAME for name, law in found.items()):
        found |= {name: law for name, law in others.items() if law is Law.MIXED and name[0] in KINDS and name in laws}
    return laws | found


def run(trial: StepTrial, rows: Tried, tolerance: float, stretch: float = 1.0) -> Laws:
    """The laws of what a step computes of ``rows``; its gradients are ``stretch`` times as long."""
    batch, total = rows.whole
    trial.stretch = stretch
    whole = trial.run(batch, total, total)
    laws = laws_of(whole, [trial.run(part, count, total) for part, count in rows.parts], tolerance, _floors(whole))
    if tolerance == IN_FLOAT64:
        laws = _without_rounding(trial, rows, laws)
    return {name: Law.MIXED if name[0] == "applied" and law not in _SAME else law for name, law in laws.items()}


def run_later(trial: StepTrial, rows: Tried, tolerance: float, ahead: float) -> list[Laws]:
    """What a step does later on, if that can be told: a program need not admit the numbers that it is tried with."""
    try:
        with trial.state.later(ahead):
            return [run(trial, contrasted(rows) if trial.own_step else rows, tolerance)]
    except (TrainingError, ClusterError):
        raise
    except Exception:  # whatever a user's step may raise of an index out of range, or of an assertion of its own
        return []


def unknown_in(laws: Laws, of_all_kinds: bool) -> list[Any]:
    """The names of numbers without a law, of those that weights are made of or ``of_all_kinds``."""
    kinds = ("loss", "added", "gradient")
    return [name for name, law in laws.items() if law is Law.UNKNOWN and (of_all_kinds or name[0] in kinds)]


def shows(trial: StepTrial, rows: Tried, names: Sequence[Any], tolerance: float) -> bool:
    """Whether any of the numbers by these ``names`` is not zero for ``rows``, now or later on."""

    def now() -> bool:
        whole = trial.run(rows.whole[0], rows.whole[1], rows.whole[1])
        laws = laws_of(whole, [], tolerance, _floors(whole))
        return any(laws.get(name, Law.UNKNOWN) is not Law.UNKNOWN for name in names)

    for ahead in (0.0, *trial.state.ahead(trial.own_step)):
        try:
            with trial.state.later(ahead) if ahead else nullcontext():
                if now():
                    return True
        except (TrainingError, ClusterError):
            raise
        except Exception:  # whatever a user's step may raise of rows that are none of its own
            continue
    return False


def refuse_metrics(trial: StepTrial, rows: Tried, on_any: Callable[[bool], bool]) -> None:
    """Refuse a step that goes by what its metrics hold, ``on_any`` rank."""
    if on_any(_goes_by_metrics(trial, rows)):
        raise TrainingError(of_gradients_by_metrics(trial.model))


def _goes_by_metrics(trial: StepTrial, rows: Tried) -> bool:
    """Whether what weights are made of follows from what metrics hold, which within an epoch is each rank's own."""
    batch, total = rows.whole
    now = trial.run(batch, total, total).values
    try:
        with trial.state.other_metrics():
            then = trial.run(batch, total, total).values
    except (TrainingError, ClusterError):
        raise
    except Exception:  # whatever a user's step may raise of numbers that are none of its rows
        return False
    names = [name for name in now if name[0] in KINDS and name in then]
    return any(not np.allclose(now[n], then[n], rtol=1e-3, atol=1e-9, equal_nan=True) for n in names)


def _floors(whole: StepValues) -> dict[Any, float]:
    sizes = {n: float(np.abs(v).max(initial=0.0)) for n, v in whole.values.items() if n[0] in _GRADIENTS}
    floor = FLOOR * max(sizes.values(), default=0.0)
    return dict.fromkeys(sizes, floor)


def _without_rounding(trial: StepTrial, rows: Tried, laws: Laws) -> Laws:
    """The laws, unknown for gradients that seem to mix rows and are nothing but rounding.

    So are those of a weight that is used in several places where they cancel, as of a bias before distances. The rest
    does not scale as the loss does.
    """
    names = [name for name, law in laws.items() if law is Law.MIXED and name[0] in _GRADIENTS]
    sizes: dict[Any, float] = dict.fromkeys(names, 0.0)
    changes, largest = dict(sizes), 0.0
    for batch, count in (rows.whole, *rows.parts) if names else ():
        values = trial.run(batch, count, rows.whole[1]).values
        largest = max(largest, *(float(np.abs(v).max(initial=0.0)) for n, v in values.items() if n[0] in _GRADIENTS))
        for trial.scale in SCALES:
            scaled = trial.run(batch, count, rows.whole[1]).values
            for name in names:
                change = np.abs(scaled[name] / trial.scale - values[name]).max(initial=0.0)
                changes[name] = max(changes[name], float(change))
                sizes[name] = max(sizes[name], float(np.abs(values[name]).max(initial=0.0)))
        trial.scale = 1.0
    rounding = {n for n in names if sizes[n] <= ROUNDINGS * changes[n] and changes[n] <= ROUNDED * largest}
    return {name: Law.UNKNOWN if name in rounding else law for name, law in laws.items()}
