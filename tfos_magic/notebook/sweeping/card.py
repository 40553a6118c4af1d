"""The card of a sweep: its table and the best, as HTML that needs no kernel, no script and no style sheet."""

from __future__ import annotations

from functools import cache
from html import escape
from pathlib import Path
from string import Template

from tfos_magic.notebook.sweeping.picture import (
    epoch_of,
    has_begun,
    importance,
    in_words,
    state_of,
    summary,
    take_picture,
)
from tfos_magic.notebook.views.charts import Chart, ChartLine
from tfos_magic.notebook.views.line_chart import draw_chart
from tfos_magic.notebook.views.tables import html_table
from tfos_magic.notebook.views.wording import count_of, number
from tfos_magic.sweeps.sweep import Sweep
from tfos_magic.sweeps.trial import Trial

ROWS, CURVES, FAILURES = 100, 60, 8
_TEMPLATES = Path(__file__).parent / "templates"
_WARN, _BAD = "var(--jp-warn-color1,#ef6c00)", "var(--jp-error-color1,#d32f2f)"


def card_bundle(sweep: Sweep) -> dict[str, str]:
    """The MIME bundle of the card: HTML, and the same in one line of plain text."""
    return {"text/html": render_card(sweep), "text/plain": summary(sweep)}


def render_card(sweep: Sweep) -> str:
    """A sweep as self-contained HTML; all text from outside is escaped."""
    picture = take_picture(sweep)
    failed = [trial for trial in sweep.trials if trial.error]
    subtitle = [picture["name"], picture["strategy"], picture["position"], picture["elapsed"]]
    return _fill(
        "sweep",
        phase=picture["phase"],
        headline=escape(picture["headline"]),
        subtitle=escape(" · ".join(part for part in subtitle if part)),
        error=_notice(picture["error"], _BAD) if picture["error"] else "",
        best=escape(" · ".join(f"{metric['name']} {metric['text']}" for metric in picture["metrics"])),
        matters=_matters(sweep),
        chart=draw_chart(_chart(sweep)),
        table=_table(sweep),
        failures="".join(map(_failure, failed[:FAILURES])),
        notices="".join(_notice(text, _WARN) for text in picture["notices"]),
    )


def _matters(sweep: Sweep) -> str:
    """Which parameters matter, once it has ended."""
    shares = importance(sweep) if sweep.done else []
    told = " · ".join(f"{name} {share:.0%}" for name, share in shares)
    return f"<p>Importance: {escape(told)}</p>" if told else ""


def _table(sweep: Sweep) -> str:
    """The trials, the best of them on top: all of few, by number; of many the best ones, in their order."""
    begun = [trial for trial in sweep.trials if has_begun(trial) and trial.number is not None]
    if not begun:
        return ""
    first = _first(sweep, begun)
    shown = first[:ROWS] if len(begun) > ROWS else sorted(begun, key=lambda each: (each is not first[0], each.number))
    names = list(dict.fromkeys(name for trial in shown for name in trial.params))
    head = ["", "trial", *names, "state", "epoch", sweep.search.metric]
    rows = [[_mark(sweep, trial), *_cells(trial, names)] for trial in shown]
    more = f"{count_of(len(begun) - len(shown), 'further trial')}: study.trials_dataframe() has all."
    return html_table([head, *rows]) + (f"<p>{escape(more)}</p>" if len(begun) > len(shown) else "")


def _first(sweep: Sweep, trials: list[Trial]) -> list[Trial]:
    """Those that ended well by their metric, the best first, then those that failed, then all others."""
    sign = -1 if sweep.search.direction == "maximize" else 1

    order = {"complete": 0, "failed": 1}

    def place(trial: Trial) -> tuple[bool, int, float]:
        value = trial.value if trial.value is not None else 0.0
        return trial is not sweep.best_trial, order.get(trial.verdict, 2), sign * value

    return sorted(trials, key=place)


def _mark(sweep: Sweep, trial: Trial) -> str:
    return "★" if trial is sweep.best_trial else ""


def _cells(trial: Trial, names: list[str]) -> list[str]:
    chosen = [in_words(trial.params[name]) if name in trial.params else "" for name in names]
    value = "" if trial.value is None else number(trial.value)
    return [str(trial.number), *chosen, state_of(trial), epoch_of(trial), value]


def _chart(sweep: Sweep) -> Chart:
    """The curves of the trials over one another, the best one last and strong."""
    metric, best = sweep.search.metric, sweep.best_trial
    others = [trial for trial in sweep.trials if trial.curve and trial is not best][-CURVES:]
    lines = [_line(metric, "faint", trial) for trial in others]
    return Chart(metric, "epoch", [*lines, *([_line(metric, "solid", best)] if best is not None else [])])


def _line(metric: str, style: str, trial: Trial) -> ChartLine:
    values = [value if abs(value) < float("inf") else None for value in trial.curve.values()]
    return ChartLine(f"{metric} of trial {trial.number}", style, [float(epoch) for epoch in trial.curve], values)


def _failure(trial: Trial) -> str:
    headline, _, _ = trial.error.partition("\n")
    return _fill("failure", headline=escape(f"Trial {trial.number}: {headline}"), text=escape(trial.error))


def _notice(text: str, tone: str) -> str:
    return _fill("notice", text=escape(text), tone=tone)


def _fill(name: str, /, **values: str) -> str:
    return _template(name).substitute(values)


@cache
def _template(name: str) -> Template:
    return Template((_TEMPLATES / f"{name}.html").read_text(encoding="utf-8"))
