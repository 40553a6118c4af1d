"""A sweep in words, as rows, and as the card that a saved notebook keeps."""

from __future__ import annotations

import json

import pytest

from tests.unit.sweeps.simulated import ToldSweep, failure
from tfos_magic.errors import RunInterrupted
from tfos_magic.notebook.sweeping.card import ROWS, card_bundle, render_card
from tfos_magic.notebook.sweeping.picture import importance, row_of, summary, take_picture
from tfos_magic.notebook.sweeping.views import LinesView


def test_a_sweep_that_waits_goes_on_and_ends_is_told_in_words() -> None:
    sweep = ToldSweep(12)
    assert take_picture(sweep)["headline"] == "Waiting for 2 workers"
    assert [row_of(trial) for trial in sweep.trials] == [[]] * 12
    sweep.play(5, failing=3)
    sweep.begin(5)
    picture = take_picture(sweep)
    pruned = sweep.count("pruned")
    assert picture["position"] == f"5 of 12 trials · {pruned} pruned · 1 failed"
    assert picture["metrics"][0]["name"] == "best val_accuracy"
    assert (picture["phase"], picture["ended"], picture["strategy"]) == ("running", False, "maximize val_accuracy")
    assert "left" in picture["remaining"]
    json.dumps(picture)
    for trial in sweep.trials[10:]:
        trial.spare()
        sweep.end(trial, RunInterrupted({}, ""))
    sweep.finish()
    assert summary(sweep).startswith("Searched on 2 workers in ")
    assert f"5 of 10 trials · {pruned} pruned · 1 failed · 2 not needed" in summary(sweep)


def test_a_row_has_what_was_chosen_and_a_short_curve() -> None:
    sweep = ToldSweep(1, pruner="none")
    trial = sweep.begin(0)
    for _ in range(100):
        sweep.epoch(trial)
    number, params, state, epoch, value, curve, error = row_of(trial)
    assert (number, state, epoch, error) == (0, "training", "100 of 10", "")
    assert params == trial.params
    assert value == trial.value
    assert len(curve) <= 33
    assert curve[-1][0] == 100
    trial.curve[101] = float("nan")
    assert row_of(trial)[5][-1] == [101, None]


def test_the_card_has_the_table_the_best_and_the_tracebacks_and_nothing_of_them_is_markup() -> None:
    sweep = ToldSweep(6)
    sweep.play(6, failing=2)
    sweep.finish()
    html = render_card(sweep)
    assert html.count("★") == 1
    assert html.count("<tr>") == 7
    assert "&lt;b&gt;units&lt;/b&gt; must be even" in html
    assert "line 3 of &lt;cell&gt;" in html
    assert "<b>" not in html
    assert "<svg" in html
    assert card_bundle(sweep)["text/plain"] == summary(sweep)


def test_the_card_of_a_thousand_trials_has_the_best_of_them_and_those_that_failed() -> None:
    sweep = ToldSweep(400)
    sweep.play(400, failing=7)
    html = render_card(sweep)
    assert html.count("<tr>") == ROWS + 1
    assert html.count("★") == 1
    assert ">failed<" in html
    assert f"{400 - ROWS} further trials: study.trials_dataframe() has all." in html
    assert len(html) < 60_000


def test_which_parameters_matter_is_told_once_enough_trials_have_ended_well() -> None:
    sweep = ToldSweep(40, pruner="none")
    sweep.play(7)
    assert importance(sweep) == []
    for index in range(7, 40):
        trial = sweep.begin(index)
        for _ in range(3):
            sweep.epoch(trial)
        sweep.end(trial)
    shares = dict(importance(sweep))
    assert shares.keys() == {"rate", "units", "kind"}
    assert max(shares, key=lambda name: shares[name]) == "rate"
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-3)


def test_lines_tell_each_trial_and_each_notice_once(capsys: pytest.CaptureFixture[str]) -> None:
    sweep, view = ToldSweep(3), LinesView()
    view.open(sweep)
    sweep._searching.say("something to know")
    sweep.play(2)
    view.update(sweep)
    view.update(sweep)
    sweep.end(sweep.begin(2), failure())
    view.close(sweep)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" · ")[0] for line in lines[1:-1]] == [
        "note: something to know",
        "trial 0",
        "trial 1",
        "trial 2",
    ]
    assert "failed" in lines[4]
    assert "ValueError on worker 0 on h: <b>units</b> must be even" in lines[4]
