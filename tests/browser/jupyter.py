"""A real JupyterLab on this machine, and notebooks opened in it by a real browser."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat.sign import NotebookNotary
from playwright.sync_api import BrowserContext, Locator, Page, expect

START_SECONDS = 60.0
STOP_SECONDS = 15.0
RUN_MS = 60_000

_SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: its folder of notebooks, its address up to the base URL's last slash, its token."""

    root: Path
    url: str
    token: str

    def write(self, name: str, *cells: str) -> Path:
        """Write a notebook of code cells into the folder."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        path = self.root / f"{name}.ipynb"
        nbformat.write(notebook, path)
        NotebookNotary(data_dir=str(self.root.parent / "data")).sign(notebook)
        return path


@contextmanager
def run_lab(
    folder: Path,
    before: Sequence[str] = (),
    base_url: str = "/",
    environment: Mapping[str, str] | None = None,
    application: str = "jupyterlab",
) -> Iterator[Lab]:
    """Start JupyterLab, or Notebook 7, in ``folder`` with settings of its own, and stop it with its kernels.

    ``before`` stands in front of its command, and ``environment`` comes on top of ours.
    """
    root, token = folder / "notebooks", secrets.token_hex(16)
    root.mkdir()
    _write_settings(folder / "settings")
    command = [*before, sys.executable, "-m", application, "--no-browser", "--allow-root", "--expose-app-in-browser"]
    options = [
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port=0",
        f"--ServerApp.base_url={base_url}",
        f"--ServerApp.root_dir={root}",
        f"--IdentityProvider.token={token}",
    ]
    homes = {f"JUPYTER_{kind}_DIR": str(folder / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    own = {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "IPYTHONDIR": str(folder / "ipython")}
    server = subprocess.Popen(
        [*command, *options],
        env={**os.environ, **homes, **own, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = _Log(server)
    try:
        yield Lab(root, log.await_url(), token)
    finally:
        server.terminate()
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # Jupyter's server can miss the signal while a kernel starts; its kernels end when it is gone.
            server.kill()
            server.wait(STOP_SECONDS)
        log.close()


FRAMES = """() => new Promise((resolve) => {
  const began = performance.now();
  let frames = 0;
  const count = (now) => {
    frames += 1;
    if (now - began < 4000) requestAnimationFrame(count);
    else resolve(1000 * frames / (now - began));
  };
  requestAnimationFrame(count);
})"""
"""Gives how many frames a second a page draws, over four seconds."""


class _Log:
    """Reads what the server prints, for the line with its address and for the message when it does not come."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        assert server.stdout is not None
        self._stream = server.stdout
        self._lines: list[str] = []
        self._url = ""
        self._settled = threading.Event()
        self._reader = threading.Thread(target=self._read, name="tfos-test-lab-log", daemon=True)
        self._reader.start()

    def await_url(self) -> str:
        self._settled.wait(START_SECONDS)
        assert self._url, f"JupyterLab gave no address in {START_SECONDS:.0f} s:\n" + "".join(self._lines[-30:])
        return self._url

    def close(self) -> None:
        self._reader.join(STOP_SECONDS)
        self._stream.close()

    def _read(self) -> None:
        for line in self._stream:
            self._lines.append(line)
            if not self._url and (found := re.search(r"(http://127\.0\.0\.1:\d+\S*)/(?:lab|tree)\?token=", line)):
                self._url = found[1]
                self._settled.set()
        self._settled.set()


class Notebook:
    """A notebook open in JupyterLab. ``complaints`` holds what the page's console said was wrong."""

    def __init__(self, page: Page, lab: Lab, path: Path) -> None:
        self.page = page
        self.path = path
        self.complaints: list[str] = []
        self._url = f"{lab.url}/lab/tree/{path.name}?token={lab.token}&reset"
        page.on("console", lambda message: self._listen(message.type, message.text, message.location.get("url", "")))
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))

    def open(self, theme: str = "JupyterLab Light") -> Notebook:
        """Open the notebook, or open it again, and wait for its kernel."""
        self.page.goto(self._url)
        ready = "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
        self.page.wait_for_function(ready, timeout=RUN_MS)
        self.command("apputils:change-theme", {"theme": theme})
        self.page.wait_for_selector(f"body[data-jp-theme-name='{theme}']", state="attached")
        if self.page.is_visible("#jp-left-stack"):
            self.command("application:toggle-left-area")
        return self

    def command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """Run a JupyterLab command and wait for it."""
        call = "([name, args]) => window.jupyterapp.commands.execute(name, args).then(() => null)"
        self.page.evaluate(call, [name, arguments or {}])

    def start_run(self) -> None:
        """Run all cells without waiting for them."""
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")

    def await_run(self, timeout: int = RUN_MS) -> None:
        """Wait until every code cell has its number; a cell that raised fails the test with its traceback."""
        cells = len(nbformat.read(self.path, 4).cells)
        numbered = self.page.locator(".jp-CodeCell .jp-InputPrompt").filter(has_text=re.compile(r"\[\d+\]"))
        expect(numbered).to_have_count(cells, timeout=timeout)
        errors = self.page.locator("[data-mime-type='application/vnd.jupyter.stderr'], .jp-RenderedText.jp-mod-error")
        assert errors.count() == 0, errors.first.inner_text()

    def save(self) -> Any:
        """Save, and give the notebook as it is on disk."""
        self.command("docmanager:save")
        return nbformat.read(self.path, 4)

    def shut_kernel_down(self) -> None:
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")

    def output(self, selector: str) -> Locator:
        return self.page.locator(f".jp-OutputArea-output {selector}")

    def _listen(self, kind: str, text: str, url: str) -> None:
        if kind == "error":
            self.complaints.append(f"{text} ({url})")


def open_notebook(context: BrowserContext, lab: Lab, path: Path, theme: str = "JupyterLab Light") -> Notebook:
    return Notebook(context.new_page(), lab, path).open(theme)


def _write_settings(folder: Path) -> None:
    for name, values in _SETTINGS.items():
        path = folder / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
