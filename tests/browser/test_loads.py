"""A page that is loaded again while a run goes on shows the panel each time, with server-side documents too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from .jupyter import Lab, open_notebook, run_lab

LOADS = 50
LIVE = """
import sys; sys.path.insert(0, {folder!r})
from simulated import new_state, run_through
from tfos_magic.notebook.views.choice import choose_view
view = choose_view("auto").view
moments = run_through(new_state(2))
view.open(next(moments))
for moment in moments:
    view.update(moment)
    if (moment.epoch, moment.step) == (2, 5):
        break
"""


def documents(project: Path) -> dict[str, str]:
    """The environment of a server whose documents are kept by itself: `make soak` puts the packages aside for it."""
    folder = project / ".venv-documents"
    assert (folder / "jupyter_server_documents").is_dir(), "make soak installs them"
    return {
        "PYTHONPATH": str(folder),
        "JUPYTER_PATH": str(folder / "share" / "jupyter"),
        "JUPYTER_CONFIG_PATH": str(folder / "etc" / "jupyter"),
    }


@pytest.fixture(params=["files", "server-side documents"])
def own_lab(request: pytest.FixtureRequest, tmp_path: Path, project: Path) -> Iterator[Lab]:
    environment = documents(project) if "server" in request.param else {}
    with run_lab(tmp_path, environment=environment) as running:
        yield running


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_fifty_loads_show_fifty_panels(own_lab: Lab, context: BrowserContext, project: Path, artefacts: Path) -> None:
    folder = str(project / "tests" / "unit" / "notebook" / "views")
    notebook = open_notebook(context, own_lab, own_lab.write("loads", LIVE.format(folder=folder)))
    notebook.start_run()
    notebook.await_run()
    notebook.save()
    for load in range(LOADS):
        notebook.open()
        panel = notebook.output(".tfos-panel")
        expect(panel, f"load {load + 1}").to_be_visible()
        expect(panel.locator(".tfos-position")).to_contain_text("step 5 of 10")
        expect(notebook.page.get_by_text("model not found")).to_have_count(0)
    notebook.page.screenshot(path=artefacts / f"loads-{sys.platform}.png")
