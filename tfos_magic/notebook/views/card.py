"""The static card: a run as HTML that needs no kernel, no script and no style sheet.

Styles are inline, with JupyterLab's variables and fallbacks that suit light and dark; where they are stripped, as on
GitHub, what is left still reads in order: headline, metrics, one table row per DataFrame and worker, notices.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from html import escape
from pathlib import Path
from string import Template

from IPython.display import display

from tfos_magic.cluster.runs.state import RunPhase, RunState
from tfos_magic.notebook.views.charts import Chart
from tfos_magic.notebook.views.line_chart import draw_chart
from tfos_magic.notebook.views.picture import Metric, Picture, summary, take_picture
from tfos_magic.notebook.views.worker_rows import WorkerRow

ROWS = 16
LINES = 40
_TEMPLATES = Path(__file__).parent / "templates"

_BRAND = "var(--jp-brand-color1,#1976d2)"
_TONES = {
    RunPhase.DONE: ("✓", "var(--jp-success-color1,#388e3c)"),
    RunPhase.STOPPED: ("■", "var(--jp-warn-color1,#ef6c00)"),
    RunPhase.FAILED: ("✗", "var(--jp-error-color1,#d32f2f)"),
}


def card_bundle(state: RunState) -> dict[str, str]:
    """The MIME bundle of the card: HTML, and the same in one line of plain text."""
    return {"text/html": render_card(state), "text/plain": summary(state)}


def part_bundle(state: RunState | None, part: str, metrics: Sequence[str] = ()) -> dict[str, str]:
    """One side of a run, as the widget of that name shows it: ``progress``, ``curves``, ``workers``, ``feeds`` or
    ``log``; all else is the card. Without a run it says so. Curves are those of ``metrics``, if any are named."""
    if state is None:
        return {"text/html": "<p>No run yet.</p>", "text/plain": "No run yet."}
    picture = take_picture(state, metrics)
    if metrics:
        picture = replace(picture, charts=[chart for chart in picture.charts if chart.name in metrics], more="")
    some = {
        "curves": lambda: _curves(picture),
        "workers": lambda: _table(replace(picture, feeds=[])),
        "feeds": lambda: _table(replace(picture, workers=[])),
        "log": lambda: _lines(state),
        "progress": lambda: _render(state, replace(picture, charts=[], phases=[], workers=[], feeds=[])),
        "stop": lambda: "",
    }
    html = some[part]() if part in some else _render(state, picture)
    return {"text/html": html, "text/plain": summary(state)}


def as_of(state: RunState | None, bundle: dict[str, str]) -> dict[str, str]:
    """A picture that may be kept; of a run that goes on it says when it was drawn, for nothing may draw it again."""
    if state is None or state.phase.ended:
        return bundle
    return drawn_at(bundle, f", when {state.name} had not ended")


def drawn_at(bundle: dict[str, str], when: str = "") -> dict[str, str]:
    """A picture with the time of now, and what was so ``when`` it was drawn."""
    words = f"Drawn at {time.strftime('%Y-%m-%d %H:%M:%S')}{when}."
    html = _fill("aside", text=escape(words)) + bundle["text/html"]
    return {**bundle, "text/html": html, "text/plain": f"{bundle['text/plain']} ({words})"}


def show_card(state: RunState) -> None:
    """Display the card under the cell that runs."""
    display(card_bundle(state), raw=True)


def render_card(state: RunState) -> str:
    """Render ``state`` as self-contained HTML; all text from outside is escaped."""
    return _render(state, take_picture(state))


def _render(state: RunState, picture: Picture) -> str:
    mark, tone = _TONES.get(state.phase, ("●", _BRAND))
    return _fill(
        "card",
        phase=picture.phase,
        tone=tone,
        mark=mark,
        headline=escape(picture.headline),
        subtitle=escape(" · ".join(part for part in _subtitle(picture) if part)),
        percent=f"{100 * (picture.fraction or 0.0):.1f}",
        error=_fill("error", text=escape(picture.error)) if picture.error else "",
        metrics=_metrics(picture),
        curves=_curves(picture),
        phases=_phases(picture),
        table=_table(picture),
        notices="".join(_fill("notice", text=escape(text)) for text in picture.notices),
    )


def _subtitle(picture: Picture) -> tuple[str, ...]:
    return (picture.name, picture.strategy, picture.position, picture.elapsed, picture.traffic)


def _metrics(picture: Picture) -> str:
    metrics = [*picture.metrics, *([Metric("pace", picture.pace)] if picture.pace else [])]
    return "".join(_fill("metric", name=escape(metric.name), text=escape(metric.text)) for metric in metrics)


def _curves(picture: Picture) -> str:
    drawn = [(chart, svg) for chart in picture.charts if (svg := draw_chart(chart))]
    curves = (_fill("curve", name=escape(chart.name), legend=_legend(chart), svg=svg) for chart, svg in drawn)
    said = (_fill("aside", text=escape(text)) for text in (picture.fit, picture.more) if text)
    return "".join([_fill("curves", curves="".join(curves)), *said]) if drawn else ""


def _legend(chart: Chart) -> str:
    return " · dashed: validation" if any(line.style == "dashed" for line in chart.lines) else ""


def _phases(picture: Picture) -> str:
    text = " · ".join(f"{phase.name} {phase.text}" for phase in picture.phases)
    return _fill("phases", text=escape(text)) if text else ""


def _table(picture: Picture) -> str:
    feeds = [(feed.name, feed.text, feed.state, "") for feed in picture.feeds]
    workers = [(f"worker {w.rank}", w.where, _state(w), w.pace) for w in _shown(picture.workers)]
    if hidden := len(picture.workers) - len(workers):
        workers.append((f"{hidden} more", "of which none is in trouble", "", ""))
    rows = (map(escape, row) for row in feeds + workers)
    names = ("first", "second", "third", "fourth")
    return _fill("table", rows="".join(_fill("row", **dict(zip(names, row, strict=True))) for row in rows))


def _lines(state: RunState) -> str:
    lines = sorted(pair for worker in state.workers for pair in zip(worker.log_order, worker.log, strict=False))
    return f"<pre>{escape(chr(10).join(line for _, line in lines[-LINES:]))}</pre>"


def _shown(workers: list[WorkerRow]) -> list[WorkerRow]:
    """All of a few workers; of many, those in trouble and the first of the others."""
    if len(workers) <= ROWS:
        return workers
    troubled = [worker for worker in workers if worker.trouble]
    others = [worker for worker in workers if not worker.trouble]
    return [*troubled, *others[: max(0, ROWS - len(troubled))]]


def _state(worker: WorkerRow) -> str:
    return worker.state if worker.trouble in ("", worker.state) else f"{worker.state} · {worker.trouble}"


def _fill(name: str, /, **values: str) -> str:
    return _template(name).substitute(values)


@cache
def _template(name: str) -> Template:
    return Template((_TEMPLATES / f"{name}.html").read_text(encoding="utf-8"))
