"""Jupyter Notebook 7: the panel, its Stop button, and the card that stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from .jupyter import run_lab
from .test_run import SETUP, START_MS, TRAIN

OF_ITS_OWN = "Cannot read properties of undefined (reading 'schema')"  # with an empty notebook, too


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_notebook_7_shows_the_panel_whose_stop_ends_the_run(
    context: BrowserContext, tmp_path: Path, artefacts: Path
) -> None:
    with run_lab(tmp_path, application="notebook") as server:
        train = TRAIN.format(options="-o history", epochs=5000, callback="")
        path = server.write("seven", SETUP.format(gates=str(tmp_path)), train, "len(history.epoch)")
        page = context.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{server.url}/notebooks/{path.name}?token={server.token}")
        idle = "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
        page.wait_for_function(idle, timeout=START_MS)
        page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
        panel = page.locator(".tfos-panel")
        expect(panel.locator(".tfos-position")).to_contain_text("of 5,000", timeout=START_MS)
        panel.get_by_role("button", name="Stop", exact=True).click()
        card = page.locator(".tfos-card[data-phase=stopped]")
        expect(card).to_be_visible()
        expect(panel).to_have_count(0)
        page.screenshot(path=artefacts / "notebook-7.png")
        assert set(complaints) <= {OF_ITS_OWN}
