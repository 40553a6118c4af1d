"""Whose the trials of a study are, where several kernels may search in it, and which count."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from tfos_magic.this_host import HostProcess, this_process

if TYPE_CHECKING:
    import optuna

OWNER, ERROR, AGAIN = "tfos_owner", "tfos_error", "tfos_again"
"""Attributes of a study's trials: whose kernel has one, why it failed, and the number of the one tried again."""
STOPPED = "stopped before its end"


def ended_trials(study: optuna.Study) -> int:
    """How many trials of a study count: those that ended by themselves, well or not."""
    return len(_ended(study.get_trials(deepcopy=False)))


def _ended(trials: list[optuna.trial.FrozenTrial]) -> list[optuna.trial.FrozenTrial]:
    failed, ended = _states().FAIL, [trial for trial in trials if trial.state.is_finished()]
    return [trial for trial in ended if trial.state != failed or not _is_unfinished(trial)]


def _is_unfinished(failed: optuna.trial.FrozenTrial) -> bool:
    """Whether a trial was stopped, or its kernel ended; those that Optuna itself has run have no owner."""
    return failed.user_attrs.get(ERROR, STOPPED if OWNER in failed.user_attrs else "") == STOPPED


def taken_trials(study: optuna.Study, before: int | None = None) -> int:
    """How many trials of a study count, of all or of those with numbers ``before`` one: trials that kernels which live
    have under way are among them."""
    running, known = _states().RUNNING, study.get_trials(deepcopy=False)[:before]
    under_way = [trial for trial in known if trial.state == running]
    return len(_ended(known)) + sum(not _is_gone(trial.user_attrs.get(OWNER, "")) for trial in under_way)


def take_up(study: optuna.Study, most: int) -> int:
    """Have those trials tried again, with what was chosen for them, that were stopped, or that a kernel of this machine
    had under way when it ended, ``most`` of them; gives how many."""
    state, again = _states(), 0
    known = study.get_trials(deepcopy=False)
    done = {trial.user_attrs.get(AGAIN) for trial in known}
    for trial in known:
        left = trial.state == state.RUNNING and _is_gone(trial.user_attrs.get(OWNER, ""))
        if left:
            study.tell(trial.number, state=state.FAIL)
        stopped = left or trial.user_attrs.get(ERROR) == STOPPED
        if stopped and trial.number not in done and trial.params:
            study.enqueue_trial(trial.params, user_attrs={AGAIN: trial.number})
            again += 1
        if again == most:
            break
    return again


def owner() -> str:
    """Whose trials these are: this process."""
    return json.dumps(asdict(this_process()))


def _is_gone(owned: str) -> bool:
    """Whether a process of this machine is no more; what others have, or another program, is theirs."""
    try:
        return HostProcess(**json.loads(owned)).is_gone
    except (ValueError, TypeError):
        return False


def _states() -> type[optuna.trial.TrialState]:
    from optuna.trial import TrialState

    return TrialState
