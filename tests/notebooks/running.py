"""Runs a tutorial as a newcomer does: a fresh kernel in a fresh folder, all cells from top to bottom."""

from __future__ import annotations

import base64
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient

CELL_SECONDS = 240
GONE_SECONDS = 10.0


@dataclass(frozen=True)
class Executed:
    """A notebook after its run, with the folder where its data and logs stay.

    ``running`` holds, for the index of each code cell, the commands of what ran below the kernel when that cell was
    done; ``left`` those that outlived the kernel by ten seconds; ``seconds`` is the time of all cells.
    """

    notebook: nbformat.NotebookNode
    folder: Path
    running: dict[int, list[str]]
    left: list[str]
    seconds: float

    def text(self, beginning: str) -> str:
        """What the cell shows that is ``beginning``, or alone begins so: as text without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(map(text_of, self._cell(beginning).outputs)))

    def pictures(self, beginning: str) -> list[bytes]:
        """The PNG files that the cell shows, found as by :meth:`text`."""
        shown = (output.get("data", {}) for output in self._cell(beginning).outputs)
        return [base64.b64decode(data["image/png"]) for data in shown if "image/png" in data]

    def running_after(self, beginning: str) -> list[str]:
        """The commands of what ran below the kernel after the cell, found as by :meth:`text`."""
        return self.running[self.notebook.cells.index(self._cell(beginning))]

    def _cell(self, beginning: str) -> nbformat.NotebookNode:
        code = [cell for cell in self.notebook.cells if cell.cell_type == "code"]
        found = [cell for cell in code if cell.source == beginning]
        found = found or [cell for cell in code if cell.source.startswith(beginning)]
        assert len(found) == 1, f"{len(found)} cells begin with {beginning!r}, not one"
        return found[0]


def execute(notebook_path: Path, folder: Path, artefacts: Path) -> Executed:
    """Run a notebook once in ``folder``, and put it with its outputs, however far it came, into ``artefacts``.

    A cell that fails raises nbclient's ``CellExecutionError``, unless it has the tag ``raises-exception``.
    """
    notebook = nbformat.read(notebook_path, as_version=4)
    client = NotebookClient(
        notebook, timeout=CELL_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    running: dict[int, list[str]] = {}
    commands: dict[psutil.Process, str] = {}
    began = time.monotonic()
    # The suite draws into files; the notebook shall draw as it does for a newcomer.
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    try:
        with client.setup_kernel(env=environment):
            for index, cell in enumerate(notebook.cells):
                if cell.cell_type != "code":
                    continue
                client.execute_cell(cell, index)
                now = {process: command(process) for process in below(client)}
                running[index] = list(now.values())
                commands |= now
            seconds = time.monotonic() - began
        _, alive = psutil.wait_procs(list(commands), timeout=GONE_SECONDS)
    finally:
        nbformat.write(notebook, artefacts / notebook_path.name)
    return Executed(notebook, folder, running, [commands[process] for process in alive], seconds)


def below(client: NotebookClient) -> list[psutil.Process]:
    """Everything that runs below the notebook's kernel."""
    return psutil.Process(client.km.provisioner.pid).children(recursive=True)


def command(process: psutil.Process) -> str:
    try:
        return " ".join([process.name(), *process.cmdline()])
    except psutil.NoSuchProcess:
        return ""


def text_of(output: nbformat.NotebookNode) -> str:
    if output.output_type == "error":
        return "\n".join(output.traceback)
    return output.get("text") or output.get("data", {}).get("text/plain", "")
