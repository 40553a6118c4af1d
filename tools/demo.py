"""Run the quickstart notebook without a browser and print what happened.

Usage: ``python tools/demo.py [NOTEBOOK]``. Exits with 1, and the error, when a cell fails.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import tempfile
import textwrap
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
    """What the kernel knows of the cluster and of the last run; its source runs there."""
    from IPython.core.interactiveshell import InteractiveShell

    from tfos_magic.spark.session import is_stopped, master_of

    magics = InteractiveShell.instance().magics_manager.registry.get("TFOSMagics")
    if magics is None:
        return {}
    facts: dict[str, Any] = {}
    cluster, run = magics.runtime.cluster, magics.runtime.last_run
    if cluster is not None and not is_stopped(cluster.spark):
        facts["master"] = master_of(cluster.spark)
    if run is not None:
        fed = [feed for feed in run.state.feeds.values() if feed.done and not feed.reused]
        facts["workers"] = [{"rank": w.rank, "host": w.host, "pid": w.pid, "rows": w.rows} for w in run.state.workers]
        facts["feeds"] = [{"name": feed.name, "rows": feed.rows, "seconds": feed.seconds} for feed in fed]
        facts["history"] = run.state.history
        facts["seconds"] = run.state.elapsed
    return facts


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run a notebook without a browser and say what happened.")
    parser.add_argument("notebook", nargs="?", type=Path, default=QUICKSTART)
    source = parser.parse_args(arguments).notebook.resolve()
    executed = source.parent / "executed" / source.name
    executed.parent.mkdir(exist_ok=True)
    log = executed.with_suffix(".log")
    notebook = nbformat.read(source, as_version=4)
    try:
        facts = run(notebook, source.parent, log)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        nbformat.write(notebook, executed)
        print(f"\n{plain(str(error))}\n\n{source.name} failed; as far as it came: {executed}\nLog of Spark: {log}")
        return 1
    nbformat.write(notebook, executed)
    print("", *report(facts), sep="\n")
    print(f"Executed notebook: {executed}")
    print(f"To open it in JupyterLab: make lab, then open executed/{source.name} in the file browser.")
    return 0


def run(notebook: nbformat.NotebookNode, folder: Path, log: Path) -> dict[str, Any]:
    """Run all cells in one kernel and give the facts, each as last seen: the cluster is gone once the notebook ends."""
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tfos-demo-") as sockets, kernel(notebook, folder, sockets, log) as client:
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
def kernel(notebook: nbformat.NotebookNode, folder: Path, sockets: str, log: Path) -> Iterator[NotebookClient]:
    """A kernel in ``folder`` that talks through files in ``sockets``, where no other user of the machine can listen.

    What is written past the notebook, as Spark's JVM does, goes to ``log``.
    """
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        config=Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}}),
    )
    with log.open("w", encoding="utf-8") as output, client.setup_kernel(stdout=output, stderr=output):
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
        trained = f"trained on {worker['rows']:,} rows"
        lines.append(f"Worker {worker['rank']}: host {worker['host']}, pid {worker['pid']}, {trained}")
    for feed in facts.get("feeds", []):
        pace = f", {feed['rows'] / feed['seconds']:,.0f} rows/s" if feed["seconds"] else ""
        lines.append(f"Fed {feed['name']}: {feed['rows']:,} rows in {feed['seconds']:.2f} s{pace}")
    for epoch, metrics in enumerate(facts.get("history", []), start=1):
        lines.append(f"Epoch {epoch}: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    if "seconds" in facts:
        lines.append(f"The training cell took {facts['seconds']:.1f} s, start and feed included")
    return lines


def first_line(source: str) -> str:
    return textwrap.shorten(source.strip().splitlines()[0], 80, placeholder=" ...")


def plain(text: str) -> str:
    """Without terminal colours, unless a terminal reads it."""
    return text if sys.stdout.isatty() else uncoloured(text)


def uncoloured(text: str) -> str:
    """Without the colours of terminals."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
