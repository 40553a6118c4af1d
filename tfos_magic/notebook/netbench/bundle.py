"""What was measured of the network, as a table, a picture and advice."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tfos_magic.cluster.netbench.bench import NetBench, PairTimes
from tfos_magic.notebook.netbench.bar_chart import draw_bars
from tfos_magic.notebook.views.tables import html_table, text_table
from tfos_magic.notebook.views.time_spent import step_advice
from tfos_magic.notebook.views.wording import count_of, moment, size
from tfos_magic.training.netbench.plan import ONE_NUMBER, Timing

SHOWN = 24
COLUMNS = ("workers", "hosts", "over", "message", "bytes", "p50", "p95", "p99", "each way")


def bundle(bench: NetBench, computing: float | None = None) -> dict[str, str]:
    """The MIME bundle. ``computing`` are the seconds that a step computes, where they are known."""
    rows, notes = [COLUMNS, *_rows(bench)], notes_of(bench, computing)
    told = "".join(f"<p>{escape(note)}</p>" for note in notes)
    html = f"{html_table(rows)}<p>{draw_bars(bars_of(bench))}</p>{told}"
    return {"text/html": html, "text/plain": "\n".join([text_table(rows), *notes])}


def bars_of(bench: NetBench) -> list[tuple[str, float]]:
    """Bytes per second of large messages by pair, the slowest first."""
    return [("-".join(map(str, pair.workers)), _pace(pair)) for pair in _slowest(bench)]


def notes_of(bench: NetBench, computing: float | None = None) -> list[str]:
    """What is to be said besides the table."""
    return [text for text in (_left_out(bench), _of_sums(bench), _advice(bench, computing)) if text]


def _slowest(bench: NetBench) -> list[PairTimes]:
    return sorted(bench.pairs, key=_pace)[:SHOWN]


def _pace(pair: PairTimes) -> float:
    return pair.timings["skewed"].bytes_per_second


def _rows(bench: NetBench) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for pair in _slowest(bench):
        over = f"{pair.wire}, encrypted" if pair.encrypted else pair.wire
        head = ["-".join(map(str, pair.workers)), ", ".join(dict.fromkeys(pair.hosts)), over]
        for kind, timing in pair.timings.items():
            rows.append([*head, kind, *_cells(timing, kind != ONE_NUMBER)])
            head = ["", "", ""]
    head = [f"all {bench.size}", "", ""]
    for compression, timing in bench.sums.items():
        kind = "gradients" if compression == "none" else f"gradients in {compression}"
        rows.append([*head, kind, *_cells(timing, False)])
        head = ["", "", ""]
    return rows


def _cells(timing: Timing, pace: bool) -> list[str]:
    shown = f"{size(int(timing.bytes_per_second))}/s" if pace else ""
    return [size(int(timing.bytes)), *(moment(each) for each in (timing.p50, timing.p95, timing.p99)), shown]


def _left_out(bench: NetBench) -> str:
    texts = [f"{count_of(bench.left_out, 'pair')} of hosts were not measured: each host has 12 partners at most."]
    hidden = len(bench.pairs) - SHOWN
    return " ".join(
        [
            *(texts if bench.left_out else []),
            *([f"Of {len(bench.pairs)} pairs the slowest {SHOWN} are shown."] if hidden > 0 else []),
        ]
    )


def _of_sums(bench: NetBench) -> str:
    if not bench.sums:
        return "How long a step's gradients take: %tfos netbench MODEL, or bytes, such as %tfos netbench 64MB."
    if bench.share < 1:
        part = f"{bench.share:.0%}" if bench.share >= 0.01 else "less than 1%"
        return f"Only {part} of the gradients were summed, so as not to take too long; the seconds are scaled up."
    return ""


def _advice(bench: NetBench, computing: float | None) -> str:
    if not bench.sums:
        return ""
    exchange, halved = bench.sums["none"].p50, bench.sums["bfloat16"].p50
    return step_advice(exchange, halved, bench.bytes, computing)
