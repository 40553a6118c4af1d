"""A run that begins again: what is trained twice is shown once."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.notebook.views.simulated import epoch_end, new_state, progress, tell
from tfos_magic.cluster.runs.state import RunPhase, RunState, rewind
from tfos_magic.transport.messages import EpochEnd


def _three_epochs() -> RunState:
    return tell(new_state(), *(epoch_end(epoch, epochs=5, loss=1.0) for epoch in range(3)))


def test_epochs_that_are_trained_again_are_taken_back() -> None:
    state = _three_epochs()
    rewind(state)
    assert (state.restarts, state.phase, len(state.history)) == (1, RunPhase.STARTING, 3)
    tell(state, progress(0, 1, 2, epochs=5))
    assert len(state.history) == 1
    tell(state, *(epoch_end(epoch, epochs=5, loss=2.0) for epoch in range(1, 5)))
    assert [metrics["loss"] for metrics in state.history] == [1.0, 2.0, 2.0, 2.0, 2.0]


def test_a_run_without_checkpoint_begins_its_history_anew() -> None:
    state = _three_epochs()
    rewind(state)
    tell(state, epoch_end(0, epochs=5, loss=2.0))
    assert [metrics["loss"] for metrics in state.history] == [2.0]


def _past(epoch: int) -> EpochEnd:
    return replace(epoch_end(epoch, epochs=5, loss=9.0), past=True)


def test_epochs_of_an_earlier_kernel_are_shown_where_they_belong() -> None:
    state = tell(new_state(), _past(0), _past(1), progress(0, 2, 1, epochs=5), epoch_end(2, epochs=5, loss=1.0))
    assert [metrics["loss"] for metrics in state.history] == [9.0, 9.0, 1.0]


def test_after_a_restart_known_epochs_said_again_change_nothing() -> None:
    state = _three_epochs()
    rewind(state)
    tell(state, _past(0), _past(1), progress(0, 2, 1, epochs=5), epoch_end(2, epochs=5, loss=2.0))
    assert [metrics["loss"] for metrics in state.history] == [1.0, 1.0, 2.0]


def test_a_fit_that_was_over_before_a_restart_keeps_its_epochs() -> None:
    state = _three_epochs()
    rewind(state)
    tell(state, progress(0, 0, 0, epochs=3, phase="rest"))
    assert state.metrics["loss"] == 1.0
    tell(state, epoch_end(0, epochs=2, loss=2.0, fit=1))
    assert [metrics["loss"] for metrics in state.earlier[0].values()] == [1.0] * 3
    assert [metrics["loss"] for metrics in state.history] == [2.0]


def test_bytes_are_those_of_the_epochs_in_which_they_were_sent() -> None:
    state = _three_epochs()
    tell(state, epoch_end(0, epochs=2, fit=1))
    state.workers[0].sent = 4000
    assert state.sent_per_epoch == 1000
    rewind(state)
    assert state.sent_per_epoch == 0
    tell(state, _past(0), epoch_end(1, epochs=2, fit=1))
    assert state.sent_per_epoch == 4000


def test_without_a_restart_nothing_is_taken_back() -> None:
    state = _three_epochs()
    tell(state, progress(0, 1, 2, epochs=5))
    assert len(state.history) == 3


def test_an_earlier_fit_that_is_trained_again_keeps_the_epochs_before() -> None:
    state = tell(_three_epochs(), epoch_end(0, epochs=5, loss=3.0, fit=1))
    rewind(state)
    tell(state, _past(0), progress(0, 2, 1, epochs=5), epoch_end(2, epochs=5, loss=2.0))
    losses = {fit: {epoch: logs["loss"] for epoch, logs in known.items()} for fit, known in state.fits.items()}
    assert losses == {0: {0: 1.0, 1: 1.0, 2: 2.0}}
