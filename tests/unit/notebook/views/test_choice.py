"""Which view is chosen; real clients ask where they can."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tfos_magic.errors import UsageError
from tfos_magic.notebook.views.choice import choose_view, detect, shows_frames
from tfos_magic.notebook.views.html import HtmlView
from tfos_magic.notebook.views.text import TextView
from tfos_magic.notebook.views.ticker import Throttled
from tfos_magic.widgets.live_view import WidgetView


def request(allow_stdin: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"content": {"allow_stdin": allow_stdin}, "metadata": metadata}


def chosen(name: str = "auto") -> type:
    view = choose_view(name)
    assert isinstance(view, Throttled)
    return type(view.view)


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TFOS_VIEW", raising=False)


def test_each_view_can_be_asked_for_by_name() -> None:
    assert [chosen(name) for name in ("widget", "html", "text")] == [WidgetView, HtmlView, TextView]


def test_without_a_kernel_it_is_text() -> None:
    assert chosen() is TextView


def test_the_environment_wins_over_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFOS_VIEW", "html")
    assert chosen("text") is HtmlView


def test_an_unknown_view_is_refused_and_the_choices_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"--view: .*'table'.*auto, widget, html, text"):
        choose_view("table")
    monkeypatch.setenv("TFOS_VIEW", "chart")
    with pytest.raises(UsageError, match=r"TFOS_VIEW: .*'chart'"):
        choose_view("text")


@pytest.mark.parametrize(
    ("asked", "view"),
    [
        (None, "text"),
        (request(cellId="5f2c3f0e", deletedCells=[], recordTiming=False), "widget"),
        (request(cellId="vscode-notebook-cell:/home/ann/a.ipynb#W0sZmlsZQ%3D%3D"), "html"),
        (request(allow_stdin=False), "text"),
        (request(), "html"),
        ({}, "html"),
    ],
)
def test_the_request_tells_the_client(asked: dict[str, Any] | None, view: str) -> None:
    assert detect(asked) == view


def test_colab_gets_html(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shows_frames(request(cellId="abc"))
    monkeypatch.setitem(sys.modules, "google.colab", object())
    assert detect(request(cellId="abc")) == "html"
    assert not shows_frames(request(cellId="abc"))


def test_vs_code_gets_links_instead_of_frames() -> None:
    assert not shows_frames(request(cellId="vscode-notebook-cell:/home/ann/a.ipynb#W0sZmlsZQ%3D%3D"))
    assert all(shows_frames(asked) for asked in (None, {}, request(allow_stdin=False)))


def test_choosing_a_widget_loads_no_widget_library_before_it_is_opened() -> None:
    code = (
        "import sys; from tfos_magic.notebook.views.choice import choose_view\n"
        "choose_view('widget')\n"
        "sys.exit(bool({'anywidget', 'ipywidgets', 'tensorflow', 'pyspark'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
