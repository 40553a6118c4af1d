"""What the live panel sends to the page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.notebook.views.simulated import RUN, new_state, progress, run_through, tell
from tfos_magic.transport.messages import Output, RunStarted
from tfos_magic.widgets.live_view import ENDED_KEPT, WidgetView
from tfos_magic.widgets.panel import Panel, last_lines


def test_a_tick_is_one_message_however_many_workers(sent: list[tuple[str, Any]]) -> None:
    moments = run_through(new_state(world=200), steps=3)
    panel = Panel(next(moments))
    opened = len(sent)
    drawn = 0
    for moment in moments:
        panel.draw(moment)
        drawn += 1
    ticks = [data for kind, data in sent[opened:] if kind == "comm_msg"]
    assert len(ticks) == len(sent) - opened <= drawn
    assert max(len(json.dumps(tick)) for tick in ticks) < 25_000


def test_what_did_not_change_is_not_sent(sent: list[tuple[str, Any]]) -> None:
    state = new_state()
    panel = Panel(state)
    opened = len(sent)
    panel.draw(state)
    assert len(sent) == opened
    tell(state, Output(RUN, 1, "stdout", "hello"))
    panel.draw(state)
    assert [tuple(data["state"]) for _, data in sent[opened:]] == [("lines",)]


def test_the_log_is_bounded_and_in_the_order_in_which_lines_came() -> None:
    state = new_state(world=200)
    for line in range(30):
        for rank in range(200):
            tell(state, Output(RUN, rank, "stdout", f"line {line} {'x' * 1000}\n\n"))
    lines = last_lines(state)
    assert len(lines) == 400
    assert {len(text) for _, text in lines} == {200}
    assert lines[0][1].startswith("line 28 ")
    assert [rank for rank, _ in lines[:3]] == [0, 1, 2]


def test_a_chatty_worker_has_its_lines_sent_at_most_once_a_second(sent: list[tuple[str, Any]]) -> None:
    state, view = new_state(), WidgetView()
    view.open(state)
    opened = len(sent)
    for line in range(50):
        view.update(tell(state, Output(RUN, 0, "stdout", f"line {line}")))
    assert sum("lines" in data["state"] for _, data in sent[opened:]) == 1


def test_tensorboard_and_the_kernel_are_named_to_the_page(
    sent: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = "4e2ab6f5-9c3b-4f6f-8b1f-0d1f0a7f0001"
    monkeypatch.setattr("ipykernel.connect.get_connection_file", lambda: f"/run/kernel-{named}.json")
    view = WidgetView()
    assert view.tensorboard("http://127.0.0.1:6006/")
    view.open(new_state())
    state = next(data["state"] for kind, data in sent if "_esm" in data.get("state", {}))
    assert (state["tensorboard_url"], state["kernel_id"]) == ("http://127.0.0.1:6006/", named)


def test_the_panel_brings_its_module_and_style_sheet(sent: list[tuple[str, Any]]) -> None:
    Panel(new_state())
    state = next(data["state"] for kind, data in sent if kind == "comm_open" and "_esm" in data.get("state", {}))
    assert "export default" in state["_esm"]
    assert ".tfos-panel" in state["_css"]


def test_the_kernel_keeps_the_models_of_the_last_views_that_were_closed(sent: list[tuple[str, Any]]) -> None:
    """A page that comes back after the run's end finds the panel, and with it the card."""
    opened = 0
    for number in range(ENDED_KEPT + 2):
        view, state = WidgetView(), new_state()
        view.open(state)
        opened = opened or sum(kind == "comm_open" for kind, _ in sent)
        view.close(state)
        view.update(state)
        closed = sum(kind == "comm_close" for kind, _ in sent)
        assert closed == opened * max(0, number + 1 - ENDED_KEPT)
    kept = [data["state"]["kept"] for _, data in sent if "kept" in data.get("state", {}) and data["state"]["kept"]]
    assert "tfos-card" in kept[-1][new_state().run_id]["text/html"]


def test_of_very_many_workers_a_message_has_little_and_all_of_the_one_that_the_page_asks_for() -> None:
    state = new_state(1000)
    for rank in range(1000):
        tell(state, RunStarted(RUN, rank), progress(rank, 0, 5))
    state.workers[7].state = "lost"
    panel = Panel(state)
    panel.draw(state)
    assert panel.workers[1] == ["training", 0.5]
    assert len(panel.workers[0]) == len(panel.workers[7]) == 9
    assert panel.workers[7][-1] == "lost"
    assert len(json.dumps(panel.workers)) < 30_000
    panel._handle_custom_msg({"ask": "worker", "rank": 500}, [])
    assert panel.workers[0] == ["training", 0.5]
    assert len(panel.workers[500]) == 9
    panel._handle_custom_msg({"ask": "worker", "rank": "many"}, [])
    assert len(panel.workers[500]) == 9
