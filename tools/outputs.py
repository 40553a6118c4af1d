"""Run the tutorials and keep what they show in ``docs/tutorials/outputs``, for GitHub and for the documentation.

Usage: ``make outputs``, or ``make outputs ONLY=00_quickstart``. A cell that fails ends it, and changes nothing of its
tutorial. ``ONLY=--text`` runs nothing: it renews the text of those whose code is as it was.
``tests/notebooks/test_form.py`` fails where a tutorial has changed since.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import demo
import nbformat

ROOT = demo.ROOT
OUTPUTS = ROOT / "docs" / "tutorials" / "outputs"
SHOWN = ("text/html", "image/png", "image/svg+xml", "text/plain")
"""What a page can show; what only a live kernel can is left out where there is something else."""
SERVER = re.compile(r"(http://127\.0\.0\.1:\d+/)[\w-]{20,}/")
"""An address with its secret part."""
LONGEST = 4000
"""Characters that are kept of what a cell prints in one go: the beginning and the end."""


def main(names: list[str]) -> int:
    OUTPUTS.mkdir(exist_ok=True)
    for source in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        if names == ["--text"] and (OUTPUTS / source.name).exists():
            renew_text(source, OUTPUTS / source.name)
            continue
        if names and source.stem not in names:
            continue
        print(f"\n{source.stem}", flush=True)
        nbformat.write(cleaned(executed(source)), OUTPUTS / source.name)
    return 0


def renew_text(source: Path, kept: Path) -> None:
    """Let what is kept of a tutorial have its text as it is now, where the code is the same."""
    cells, shown = nbformat.read(source, as_version=4).cells, nbformat.read(kept, as_version=4)
    outputs = [(each.source, each.outputs) for each in shown.cells if each.cell_type == "code"]
    code = [each for each in cells if each.cell_type == "code"]
    if [each.source for each in code] != [text for text, _ in outputs]:
        print(f"{source.stem} has other code now: run it.")
        return
    for each, (_, kept_outputs) in zip(code, outputs, strict=True):
        each.outputs = kept_outputs
    shown.cells = cells
    nbformat.write(shown, kept)


def executed(source: Path) -> nbformat.NotebookNode:
    """A tutorial after its run, in a folder of its own beside copies of what lies there."""
    notebook = nbformat.read(source, as_version=4)
    with tempfile.TemporaryDirectory(prefix="tfos-outputs-") as folder:
        place = Path(folder, "notebooks")
        shutil.copytree(source.parent, place, ignore=shutil.ignore_patterns("executed", ".*"))
        began = time.monotonic()
        demo.run(notebook, place, Path(folder, "log"))
        print(f"{time.monotonic() - began:.0f} s", flush=True)
        places = {str(place): "notebooks", folder: ".", str(ROOT): "tfos_magic"}
        return replaced(notebook, {**places, sys.base_prefix: "python", str(Path.home()): "~"})


def replaced(notebook: nbformat.NotebookNode, names: dict[str, str]) -> nbformat.NotebookNode:
    """The notebook with folders of this machine by other ``names``."""
    text = nbformat.writes(notebook)
    for name, shown in names.items():
        text = text.replace(name, shown)
    return nbformat.reads(text, as_version=4)


def cleaned(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with the outputs that need no kernel, and without what differs from run to run for no reason."""
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [kept for output in _joined(cell.outputs) if (kept := _kept(output))]
    return notebook


def _joined(outputs: list[Any]) -> list[Any]:
    """What was printed in several goes as one output."""
    joined: list[Any] = []
    for output in outputs:
        if joined and output.output_type == joined[-1].output_type == "stream" and output.name == joined[-1].name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _kept(output: Any) -> Any:
    if output.output_type == "stream":
        output.text = _shortened(overwritten(demo.uncoloured(output.text)))
        return output if output.text.strip() else None
    if output.output_type == "error":
        output.traceback = [_shortened(demo.uncoloured(text)) for text in output.traceback]
        return output
    output.metadata = {}
    output.data = {kind: SERVER.sub(r"\1…/", data) for kind, data in output.data.items() if kind in SHOWN}
    if "<iframe" in output.data.get("text/html", ""):  # of a server that is there no more
        del output.data["text/html"]
    return output if any(str(data).strip() for data in output.data.values()) else None


def overwritten(text: str) -> str:
    """The text as a terminal shows it in the end: a carriage return takes back what its line had before."""
    return re.sub(r"^.*\r(?!\n)", "", text, flags=re.MULTILINE)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}\n…\n{text[-LONGEST // 2 :]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
