"""What a run is said to look like, the same for all views."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from tfos_magic.cluster.runs.state import FeedState, RunPhase
from tfos_magic.notebook.views.card import part_bundle, render_card
from tfos_magic.notebook.views.picture import METRICS_SHOWN, feed_text, summary, take_picture
from tfos_magic.notebook.views.wording import duration, number, pace, size
from tfos_magic.transport.messages import Progress, RunStarted

from .simulated import RUN, epoch_end, finish, new_state, pass_time, progress, run_through, tell


def test_of_very_many_metrics_the_first_are_shown_and_the_others_counted() -> None:
    state = new_state()
    state.metrics = {f"metric_{number}": 0.5 for number in range(10_000)}
    metrics = take_picture(state).metrics
    assert len(metrics) == METRICS_SHOWN + 1
    assert (metrics[-1].name, metrics[-1].text) == ("further metrics", "9,976")


def test_a_run_says_what_its_workers_wait_for_before_it_trains() -> None:
    state = new_state()
    assert take_picture(state).position == "waiting for the workers"
    state.wait_for("agents: 0 of 2", until=state.clock() + 120)
    assert take_picture(state).position == "waiting for agents: 0 of 2"
    pass_time(state, 12)
    state.wait_for("agents: 1 of 2", until=state.clock() + 108)
    assert take_picture(state).position == "waiting for agents: 1 of 2 (12 s, at most 1:48 more)"
    state.phase, state.feeds["train"] = RunPhase.FEEDING, FeedState("train")
    state.wait_for("")
    assert take_picture(state).position == "rows on their way to the workers"
    state.wait_for("rows that Spark has yet to compute")
    pass_time(state, 4)
    assert take_picture(state).position == "waiting for rows that Spark has yet to compute (4.0 s)"
    tell(state, RunStarted(RUN, 0), progress(0, 0, 3))
    state.wait_for("worker 1 on alpha, silent, and lost after 20 s of that", ago=3)
    said = "waiting for worker 1 on alpha, silent, and lost after 20 s of that (3.0 s)"
    assert take_picture(state).position == said
    state.wait_for("")
    assert take_picture(state).position == "epoch 1 of 3 · step 3 of 10"


def test_a_run_that_waits_says_its_place() -> None:
    state = new_state()
    state.queue()
    state.ahead = 1
    assert take_picture(state).position == "next when the workers are free"
    state.ahead = 2
    assert take_picture(state).position == "number 2 of those that wait"


def test_a_cell_that_trained_nothing_ran() -> None:
    state = new_state()
    assert take_picture(state).headline == "Starting on 2 workers"
    finish(state)
    assert take_picture(state).headline == "Ran on 2 workers"
    tell(state, epoch_end(0))
    assert take_picture(state).headline == "Trained on 2 workers"


def test_the_curves_of_a_second_fit_say_so_and_metrics_without_a_curve_are_counted() -> None:
    state = tell(new_state(), epoch_end(0), epoch_end(1))
    assert (take_picture(state).fit, take_picture(state).more) == ("", "")
    tell(state, epoch_end(0, fit=1), epoch_end(1, fit=1))
    state.metrics.update({f"m{number}": 0.5 for number in range(8)})
    picture = take_picture(state)
    assert picture.fit == "Curves of fit 2 of this cell; the history of the run has those before it."
    assert picture.more == "4 more metrics without a curve: Curves(run, metrics=['m4', 'm5', 'm6', …])."
    card = render_card(state)
    assert picture.fit in card
    assert "4 more metrics" in card
    curves = part_bundle(state, "curves", ["loss"])["text/html"]
    assert picture.fit in curves
    assert "more metrics" not in curves


def test_epochs_and_steps_are_counted_as_people_do() -> None:
    state = new_state()
    state.phase = RunPhase.RUNNING
    tell(state, epoch_end(0), progress(0, 1, 4))
    assert take_picture(state).position == "epoch 2 of 3 · step 4 of 10"
    tell(state, progress(0, 1, 1, phase="validate"))
    assert take_picture(state).position == "epoch 2 of 3 · validating"
    tell(state, progress(0, 2, 10, phase="rest"))
    assert take_picture(state).position == "epoch 3 of 3 · fit has ended, the cell goes on"


def test_unknown_totals_are_not_made_up() -> None:
    state = new_state()
    state.phase = RunPhase.RUNNING
    tell(state, progress(0, 0, 7, epochs=0, steps=0))
    picture = take_picture(state)
    assert picture.position == "epoch 1 · step 7"
    assert picture.fraction is None


def test_a_run_that_stopped_early_says_how_far_it_came() -> None:
    state = new_state()
    state.phase = RunPhase.RUNNING
    tell(state, epoch_end(0))
    pass_time(state, 61)
    finish(state, "stopped")
    assert summary(state).startswith("Stopped on 2 workers after 1:01 · 1 of 3 epochs · loss 0.5")


def test_an_ended_run_says_what_an_epoch_sent() -> None:
    state = new_state()
    tell(state, epoch_end(0), epoch_end(1))
    for rank in (0, 1):
        tell(state, replace(progress(rank, 1, 10), sent=5_000_000))
    assert "sent" not in summary(state)
    finish(state, "ok")
    assert "5.0 MB sent per epoch" in summary(state)
    assert "5.0 MB sent per epoch" in render_card(state)


@pytest.mark.parametrize(("exchange", "sent", "said"), [(8.0, 40e6, "bfloat16"), (8.0, 1e6, "local"), (1.0, 4e7, "")])
def test_an_ended_run_says_which_options_would_have_been_faster(exchange: float, sent: float, said: str) -> None:
    state = new_state()
    tell(state, progress(0, 0, 1))
    pass_time(state, 10)
    for rank in (0, 1):
        tell(state, replace(progress(rank, 0, 10), sent=int(sent), exchange_seconds=exchange))
    tell(state, epoch_end(0))
    assert not take_picture(state).notices
    finish(state, "ok")
    (notice,) = take_picture(state).notices or [""]
    if not said:
        assert notice == ""
        return
    assert notice.startswith(f"of 10 s of training, 8.0 s went to exchanging gradients, {size(int(sent / 10))} a step")
    assert ("about 6.0 s with --compression bfloat16, or " in notice) == (said == "bfloat16")
    assert "about 2.5 s with --strategy local --sync-every 16" in notice
    assert notice in render_card(state)
    state.strategy = "async"
    assert not take_picture(state).notices


def test_a_failed_run_does_not_say_that_all_workers_failed() -> None:
    state = new_state()
    pass_time(state, 3)
    finish(state, "error")
    assert summary(state) == "Training failed after 3.0 s"


def test_the_whole_of_a_run_is_plain_json_of_bounded_size() -> None:
    for state in run_through(new_state(world=100), steps=3):
        text = json.dumps(take_picture(state).as_json(), allow_nan=False)
        assert len(text) < 40_000


def test_a_diverged_run_can_still_be_sent_to_the_page() -> None:
    state = tell(new_state(), epoch_end(0, loss=math.inf), epoch_end(1, loss=math.nan))
    picture = take_picture(state)
    json.dumps(picture.as_json(), allow_nan=False)
    assert picture.metrics[0].text == "nan"


def test_overall_share_never_falls_back_while_a_run_goes_on() -> None:
    shares = [take_picture(state).fraction or 0.0 for state in run_through(new_state())]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (0.44, "0.4 s"), (9.96, "10 s"), (59.7, "1:00"), (185, "3:05"), (3723, "1:02:03")],
)
def test_durations_read_at_a_glance(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(812, "812 B"), (4_140_000, "4.1 MB"), (240_000, "240 kB")])
def test_sizes_are_decimal(count: int, text: str) -> None:
    assert size(count) == text


def test_numbers_keep_four_significant_digits() -> None:
    shown = {0.123456: "0.1235", 12.3456: "12.35", 12345.6: "12350", 123456.0: "1.23e+5", 3e-05: "3e-5", 0.0: "0"}
    assert {value: number(value) for value in shown} == shown
    assert number(math.nan) == "nan"


def test_a_pace_that_is_not_known_is_left_out() -> None:
    assert [pace(value) for value in (0, math.nan, 3.25, 12345.6)] == ["", "", "3.2 rows/s", "12,346 rows/s"]


def test_a_feed_says_when_it_was_there_already() -> None:
    assert feed_text(FeedState("train", rows=1437, reused=True)) == "1,437 rows · already on the workers"
    assert feed_text(FeedState("train", rows=1, bytes=10, seconds=2)) == "1 row · 10 B · 2.0 s · 0.5 rows/s"


def test_running_metrics_are_those_of_all_workers_by_their_rows() -> None:
    state = new_state(3)
    state.phase = RunPhase.RUNNING
    tell(state, Progress(RUN, 1, "train", 0, 2, 5, 10, 30, {"loss": 2.0}))
    tell(state, Progress(RUN, 2, "train", 0, 2, 5, 10, 0, {"loss": math.nan}))
    tell(state, Progress(RUN, 0, "train", 0, 2, 5, 10, 10, {"loss": 1.0}))
    assert state.metrics["loss"] == pytest.approx((30 * 2.0 + 10 * 1.0) / 40)
    tell(state, Progress(RUN, 0, "train", 1, 2, 1, 10, 22, {"loss": 0.5}))
    assert state.metrics["loss"] == 0.5, "rank 1 is still in the epoch before"
    tell(
        state,
        Progress(RUN, 1, "train", 1, 2, 1, 10, 66, {"loss": 0.9}),
        Progress(RUN, 0, "train", 1, 2, 2, 10, 34, {"loss": 0.5}),
    )
    assert state.metrics["loss"] == pytest.approx((0.9 * 36 + 0.5 * 24) / 60)


def test_a_run_that_was_stopped_while_it_waited_never_was_on_workers() -> None:
    state = new_state()
    state.queue()
    finish(state, "stopped")
    assert take_picture(state).headline == "Stopped before it began"
