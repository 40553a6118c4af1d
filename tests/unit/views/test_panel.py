"""What the live panel sends to the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import comm
import pytest
from comm.base_comm import BaseComm
from ipywidgets import Widget

from tfos_magic.notebook.views.picture import take_picture
from tfos_magic.widgets import WidgetView
from tfos_magic.widgets.panel import Panel

from .simulated import new_state, run_through


class RecordingComm(BaseComm):
    """Stands in for the channel to a page, which needs a kernel."""

    sent: list[tuple[str, Any]]

    def publish_msg(self, msg_type: str, data: Any = None, *_: Any, **__: Any) -> None:
        self.sent.append((msg_type, data))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    messages: list[tuple[str, Any]] = []
    monkeypatch.setattr(RecordingComm, "sent", messages, raising=False)
    monkeypatch.setattr(comm, "create_comm", RecordingComm)
    yield messages
    Widget.close_all()


def test_a_tick_is_one_message_however_many_workers(sent: list[tuple[str, Any]]) -> None:
    moments = run_through(new_state(world=100), steps=3)
    panel = Panel(picture=take_picture(next(moments)).as_json())
    opened = len(sent)
    pictures = [take_picture(moment).as_json() for moment in moments]
    for picture in pictures:
        panel.picture = picture
    ticks = [data for kind, data in sent[opened:] if kind == "comm_msg"]
    assert len(ticks) == len(sent) - opened <= len(pictures)
    assert {tuple(tick["state"]) for tick in ticks} == {("picture",)}
    assert max(len(json.dumps(tick)) for tick in ticks) < 25_000


def test_a_picture_that_did_not_change_is_not_sent(sent: list[tuple[str, Any]]) -> None:
    state = new_state()
    panel = Panel(picture=take_picture(state).as_json())
    opened = len(sent)
    panel.picture = take_picture(state).as_json()
    assert len(sent) == opened


def test_the_panel_brings_its_module_and_style_sheet(sent: list[tuple[str, Any]]) -> None:
    Panel(picture=take_picture(new_state()).as_json())
    state = next(data["state"] for kind, data in sent if kind == "comm_open" and "_esm" in data.get("state", {}))
    assert "export default" in state["_esm"]
    assert ".tfos-panel" in state["_css"]


def test_a_closed_view_leaves_no_model_in_the_kernel(sent: list[tuple[str, Any]]) -> None:
    view = WidgetView()
    state = new_state()
    view.open(state)
    opened = sum(kind == "comm_open" for kind, _ in sent)
    view.close(state)
    view.update(state)
    assert opened == sum(kind == "comm_close" for kind, _ in sent) > 0
    assert sent[-1][0] == "comm_close"
