"""Run the quickstart notebook without a browser and print what happened.

Usage: ``python tools/demo.py [NOTEBOOK]``. Exits with 1, and the error, when a cell fails.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from traitlets.config import Config

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "notebooks" / "00_quickstart.ipynb"
CELL_TIMEOUT = 600  # seconds
FACTS = "application/vnd.tfos.facts+json"


def summary() -> dict[str, Any]:
    """What the kernel knows of the session, its workers and the last run; its source runs there."""
    from IPython.core.getipython import get_ipython

    names = get_ipython().user_ns
    facts = {}
    if "spark" in names:
        facts["master"] = names["spark"].conf.get("spark.master", "")
    return facts


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run a notebook without a browser and say what happened.")
    parser.add_argument("notebook", nargs="?", type=Path, default=QUICKSTART)
    source = parser.parse_args(arguments).notebook.resolve()
    executed = source.parent / "executed" / source.name
    notebook = nbformat.read(source, as_version=4)
    try:
        facts = run(notebook, source.parent)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        print(f"\n{plain(str(error))}\n\n{source.name} failed; as far as it came: {saved(notebook, executed)}")
        return 1
    print("", *report(facts), sep="\n")
    print(f"Executed notebook: {saved(notebook, executed)}")
    print(f"To open it in JupyterLab: make lab, then open executed/{source.name} in the file browser.")
    return 0


def run(notebook: nbformat.NotebookNode, folder: Path) -> dict[str, Any]:
    """Run all cells in one kernel and give the facts, each as last seen: the cluster is gone once the notebook ends."""
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tfos-demo-") as sockets, kernel(notebook, folder, sockets) as client:
        for index, cell in enumerate(list(notebook.cells)):
            if cell.cell_type != "code" or not cell.source.strip():
                continue
            began = time.monotonic()
            print(f"[{index + 1}/{len(notebook.cells)}] {first_line(cell.source)}", end="", flush=True)
            client.execute_cell(cell, index)
            print(f"  ({time.monotonic() - began:.1f} s)", flush=True)
            facts.update({name: value for name, value in ask(client).items() if value})
    return facts


@contextmanager
def kernel(notebook: nbformat.NotebookNode, folder: Path, sockets: str) -> Iterator[NotebookClient]:
    """A kernel in ``folder`` that talks through files in ``sockets``, where no other user of the machine can listen."""
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        config=Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}}),
    )
    with client.setup_kernel():
        yield client


def ask(client: NotebookClient) -> dict[str, Any]:
    """Run :func:`summary` in the kernel, by a cell that leaves no trace in the notebook or among its names."""
    shown = f"display({{{FACTS!r}: {summary.__name__}(), 'text/plain': ''}}, raw=True)"
    source = f"from __future__ import annotations\n{inspect.getsource(summary)}\n{shown}"
    cell = nbformat.v4.new_code_cell(f"exec({source!r}, {{'display': display}})")
    client.nb.cells.append(cell)
    try:
        client.execute_cell(cell, len(client.nb.cells) - 1, store_history=False)
    finally:
        client.nb.cells.pop()
    return dict(cell.outputs[-1].data[FACTS])


def report(facts: dict[str, Any]) -> list[str]:
    """Say the facts in lines for a terminal; what the notebook did not do is left out."""
    lines = [f"Spark master: {facts['master']}"] if "master" in facts else []
    for worker in facts.get("workers", []):
        lines.append(f"Worker {worker['rank']}: host {worker['host']}, pid {worker['pid']}")
    for feed in facts.get("feeds", []):
        pace = f", {feed['rows'] / feed['seconds']:,.0f} rows/s" if feed["seconds"] else ""
        lines.append(f"Fed {feed['name']}: {feed['rows']:,} rows in {feed['seconds']:.2f} s{pace}")
    for epoch, metrics in enumerate(facts.get("history", []), start=1):
        lines.append(f"Epoch {epoch}: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    return lines


def saved(notebook: nbformat.NotebookNode, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, path)
    return path


def first_line(source: str) -> str:
    return source.strip().splitlines()[0][:80]


def plain(text: str) -> str:
    """Without terminal colours, unless a terminal reads it."""
    return text if sys.stdout.isatty() else re.sub(r"\x1b\[[0-9;]*m", "", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
