"""The curves of a run: what is drawn, in how many points, and as which SVG."""

from __future__ import annotations

import itertools
import json
import math
import re

from tfos_magic.cluster.runs.metric_series import POINTS as TRACE_POINTS
from tfos_magic.cluster.runs.metric_series import MetricSeries, Stopwatch
from tfos_magic.cluster.runs.state import RunPhase, RunState, rewind
from tfos_magic.notebook.views.charts import POINTS, Chart, ChartLine, take_charts
from tfos_magic.notebook.views.line_chart import draw_chart
from tfos_magic.transport.messages import EpochEnd

from .simulated import RUN, epoch_end, new_state, pass_time, progress, run_through, tell


def paths(svg: str) -> list[str]:
    """The curves; rules have no capital L or trailing dot."""
    return [d for d in re.findall(r' d="([^"]*)" stroke-linecap', svg)]


def epochs(*losses: float) -> RunState:
    return tell(new_state(), *(epoch_end(epoch, epochs=len(losses), loss=loss) for epoch, loss in enumerate(losses)))


def test_loss_comes_first_then_each_metric_with_its_validation_then_throughput() -> None:
    *_, state = run_through(new_state())
    charts = take_charts(state)
    assert [chart.name for chart in charts] == ["loss", "accuracy", "rows/s"]
    assert [(line.name, line.style) for line in charts[0].lines] == [
        ("loss", "faint"),
        ("loss", "solid"),
        ("val_loss", "dashed"),
    ]
    assert charts[0].lines[1].xs == [1, 2, 3]
    assert charts[-1].x == "seconds"


def test_a_run_of_one_epoch_has_a_curve_from_its_steps() -> None:
    state = new_state()
    for step in range(1, 6):
        pass_time(state, 0.1)
        tell(state, progress(0, 0, step, epochs=1))
    (line,) = take_charts(state)[0].lines
    assert line.xs == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_long_run_keeps_its_ends_in_few_points() -> None:
    state = new_state()
    for epoch in range(2000):
        for step in (1, 5, 9):
            tell(state, progress(0, epoch, step, epochs=2000))
        tell(state, epoch_end(epoch, epochs=2000))
    loss = take_charts(state)[0]
    for line, most in zip(loss.lines, (TRACE_POINTS + 1, POINTS + 1, POINTS + 1), strict=True):
        assert len(line.xs) <= most
        assert line.xs[0] <= 1
        assert line.xs[-1] >= 1999
    assert len(json.dumps([line.xs for line in loss.lines])) < 3_000


def test_a_metric_of_every_tenth_epoch_keeps_its_points_and_its_end() -> None:
    state = new_state()
    for epoch in range(2500):
        metrics = {"loss": 1.0, **({"val_loss": float(epoch)} if epoch % 10 == 9 else {})}
        tell(state, EpochEnd(RUN, 0, epoch, 2500, metrics))
    trained, validated = take_charts(state)[0].lines
    assert (trained.xs[0], trained.xs[-1]) == (1, 2500)
    assert (validated.xs[0], validated.xs[-1]) == (10, 2500)
    assert POINTS - 1 <= len(validated.xs) <= POINTS + 1
    assert all(y == x - 1 for x, y in zip(validated.xs, validated.ys, strict=True))


def test_a_metric_of_few_epochs_has_its_curve_however_late_the_first_is() -> None:
    state = new_state()
    for epoch in range(100):
        metrics = {"loss": 1.0, **({"val_loss": float(epoch)} if epoch % 25 == 24 else {})}
        tell(state, EpochEnd(RUN, 0, epoch, 100, metrics))
    validated = take_charts(state)[0].lines[1]
    assert (validated.name, validated.xs) == ("val_loss", [25, 50, 75, 100])


def test_a_trace_is_even_over_a_long_run() -> None:
    trace = MetricSeries(limit=20)
    for x in range(1000):
        trace.add(x, 1.0)
    xs = [x for x, _ in trace.points]
    assert len(xs) <= 21
    gaps = [later - earlier for earlier, later in itertools.pairwise(xs)]
    assert len(set(gaps[:-1])) == 1


def test_epochs_that_a_restart_trains_again_are_drawn_once() -> None:
    state = new_state()
    state.phase = RunPhase.RUNNING
    for epoch in (0, 1):
        tell(state, *(progress(0, epoch, step) for step in (2, 8)), epoch_end(epoch))
    rewind(state)
    tell(state, progress(0, 1, 2))
    faint, solid, _ = take_charts(state)[0].lines
    assert faint.xs == [0.2, 0.8, 1.2]
    assert solid.xs == [1]


def test_times_by_activity_add_up() -> None:
    watch = Stopwatch("start", 10.0)
    watch.switch("train", 12.0)
    watch.switch("validate", 15.0)
    watch.switch("train", 16.0)
    assert watch.read(18.0) == {"start": 2.0, "train": 5.0, "validate": 1.0}


def test_values_that_are_not_finite_are_gaps() -> None:
    chart = take_charts(epochs(1.0, math.nan, 0.5, 0.4))[0]
    assert chart.lines[0].ys == [1.0, None, 0.5, 0.4]
    solid, _ = paths(draw_chart(chart))
    assert solid.count("M") == 2
    assert "nan" not in solid
    alone, _ = paths(draw_chart(take_charts(epochs(1.0, math.nan, 2.0, math.nan, 3.0))[0]))
    assert alone.count("h0.1") == alone.count("M") == 3


def test_less_than_two_finite_values_are_no_chart() -> None:
    assert take_charts(new_state()) == []
    assert draw_chart(Chart("loss", "epoch", [ChartLine("loss", "solid", [1, 2], [1.0, None])])) == ""


def test_equal_values_are_a_line_in_the_middle() -> None:
    (path,) = paths(draw_chart(Chart("loss", "epoch", [ChartLine("loss", "solid", [1, 2], [1.0, 1.0])])))
    assert {y for _, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)} == {"41.0"}


def test_a_chart_says_in_words_what_it_draws() -> None:
    svg = draw_chart(take_charts(epochs(0.9, 0.5))[0])
    assert 'aria-label="loss by epoch: loss from 0.9 to 0.5, val_loss from 0.6 to 0.3"' in svg
    assert ">0.9</text>" in svg
