"""A dashboard as an app of its own, which Voila serves without its code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import BrowserContext, expect

from .test_dashboard import LAUNCH, SETUP

START_MS = 150_000
APP = """
from ipywidgets import VBox
from tfos_magic.widgets import ClusterView
VBox([launcher, ClusterView()])
"""


@pytest.fixture
def voila(tmp_path: Path) -> Iterator[str]:
    """The address of a notebook of two cells that Voila serves."""
    path = tmp_path / "app.ipynb"
    cells = [nbformat.v4.new_code_cell(code) for code in (SETUP, LAUNCH.replace("\nlauncher\n", "\n") + APP)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    with socket.socket() as free:  # Voila does not tell which port it took
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--no-browser", "--Voila.ip=127.0.0.1", f"--port={port}", "--VoilaConfiguration.theme=dark"]
    homes = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind.lower()) for kind in ("CONFIG", "RUNTIME")}
    with subprocess.Popen(
        [sys.executable, "-m", "voila", str(path), *options],
        env={**os.environ, **homes, "IPYTHONDIR": str(tmp_path / "ipython")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout is not None
        lines: list[str] = []
        for line in server.stdout:
            lines.append(line)
            if f"http://127.0.0.1:{port}" in line:
                yield f"http://127.0.0.1:{port}"
                break
        else:
            pytest.fail("Voila gave no address:\n" + "".join(lines[-30:]))
        server.terminate()


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_dashboard_is_an_app_of_its_own(context: BrowserContext, voila: str, artefacts: Path) -> None:
    page = context.new_page()
    page.set_viewport_size({"width": 1100, "height": 700})
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(voila, timeout=START_MS)
    train = page.get_by_role("button", name="Train")
    expect(train).to_be_visible(timeout=START_MS)
    expect(page.locator("[data-part=cluster] .tfos-headline")).to_have_text("No cluster")
    train.click()
    compared = page.locator("[data-part=compare] tbody tr")
    expect(compared.first).to_contain_text("done", timeout=START_MS)
    expect(page.locator("[data-part=cluster]")).to_contain_text("2 workers")
    page.locator("select").first.select_option("5000")
    train.click()
    expect(page.locator("[data-part=progress] .tfos-position")).to_contain_text("of 5,000", timeout=START_MS)
    page.screenshot(path=artefacts / "voila.png", full_page=True)
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(compared).to_have_count(2)
    expect(compared.nth(1)).to_contain_text("stopped", timeout=START_MS)
    assert not complaints
    page.close()
