"""One JupyterLab and one Chromium for all browser tests, a clean context for each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

from .jupyter import Lab, run_lab

ACTION_MS = 20_000
expect.set_options(timeout=ACTION_MS)
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with run_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium: the one of the system, or the one Playwright brings where the system has none."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=_FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1100, "height": 800}, device_scale_factor=2)
    made.set_default_timeout(ACTION_MS)
    yield made
    made.close()


class Gates:
    """Places where a cell waits for the test: named pipes, so that both sides wait for an event, not for a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, *names: str) -> Gates:
        for name in names:
            os.mkfifo(self.folder / name)
        return self

    def open(self, name: str) -> None:
        """Let the cell go on; blocks until it stands at the gate."""
        (self.folder / name).write_bytes(b"go")

    @property
    def code(self) -> str:
        """Python for a cell: ``pass_gate(name)``."""
        return f"from pathlib import Path\ndef pass_gate(name): Path({str(self.folder)!r}, name).read_bytes()\n"


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    return Gates(tmp_path)
