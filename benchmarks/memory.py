"""Memory of the tutorials: everything that runs for a notebook, one notebook after the other, as on Binder.

JupyterLab's server is started as a process (through `binder/start`, where that is there), a kernel through the server,
and the notebook's cells are sent to it over the server's websocket, as JupyterLab does. Twice a second the PSS of every
process is read (proportional set size: memory of its own, and its part of what it shares with others). Shown is the
moment when the sum was greatest, by kind of process, in MiB. Exits with 1 when a notebook needs more than 2 GiB
(2,048 MiB), or when one of its cells fails.

PSS gives a part of each shared page to every process of the machine that maps it: with another TensorFlow running
beside, figures are too low, and that is said.

    python benchmarks/memory.py [00_quickstart ...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import nbformat
import websocket

PROJECT = Path(__file__).resolve().parent.parent
LIMIT_MIB = 2048
SAMPLE_SECONDS = 0.5
START_SECONDS = 60.0
CELL_SECONDS = 300.0
STOP_SECONDS = 20.0
MARK = "TFOS_MEMORY_OF"
# By what is in the command line; the first that fits. Trainers are forks of a fork server; agents and feeders are
# Spark's Python workers.
KINDS = {
    "JVM": "org.apache.spark",
    "kernel": "ipykernel_launcher",
    "Spark's Python": r"\.daemon pyspark\.",
    "trainers": r"tfos_magic\.worker\.(trainer|fork_server)",
    "TensorBoard": "tensorboard",
    "server": "jupyterlab",
}
OTHER = "other"


@dataclass(frozen=True)
class Server:
    """A running JupyterLab, whose processes all carry ``mark`` in their environment."""

    url: str
    token: str
    mark: str

    def ask(self, method: str, path: str) -> Any:
        """The answer of the server's REST interface."""
        request = urllib.request.Request(
            f"{self.url}/api/{path}", method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            return json.loads(answer.read() or "null")


@contextmanager
def lab(folder: Path) -> Iterator[Server]:
    """JupyterLab on ``folder``, with settings of its own; ended with its kernels."""
    token, mark = secrets.token_hex(16), uuid4().hex
    homes = {f"JUPYTER_{kind}_DIR": str(folder / f".{kind.lower()}") for kind in ("CONFIG", "DATA", "RUNTIME")}
    environment = {**os.environ, **homes, MARK: mark, "IPYTHONDIR": str(folder / ".ipython")}
    environment.pop("MPLBACKEND", None)
    start = PROJECT / "binder" / "start"
    command = [*([str(start)] if start.exists() else []), sys.executable, "-m", "jupyterlab"]
    options = [f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={token}", "--ServerApp.port=0"]
    log = folder / ".log"
    with log.open("w") as printed:
        process = subprocess.Popen(
            [*command, "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", *options],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Server(_address(process, log), token, mark)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"(http://127\.0\.0\.1:\d+)/lab\?token=", log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise SystemExit(f"JupyterLab gave no address in {START_SECONDS:.0f} s:\n{log.read_text()[-3000:]}")


class Kernel:
    """A kernel of the server, reached as JupyterLab reaches it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._id = server.ask("POST", "kernels")["id"]
        address = f"{server.url.replace('http', 'ws', 1)}/api/kernels/{self._id}/channels?token={server.token}"
        self._socket = websocket.create_connection(address, timeout=CELL_SECONDS)

    def run(self, cell: Any) -> str:
        """Run a cell until the kernel is idle again; gives the error it raised, or nothing."""
        request = uuid4().hex
        header = {"msg_id": request, "msg_type": "execute_request", "session": self._id, "username": "", "version": "5"}
        content = {"code": cell.source, "silent": False, "store_history": True, "allow_stdin": True}
        metadata = {"cellId": cell.id}
        message = {"header": header, "parent_header": {}, "metadata": metadata, "content": content, "channel": "shell"}
        self._socket.send(json.dumps(message))
        error, answered, idle = "", False, False
        while not (answered and idle):
            heard = json.loads(self._socket.recv())
            if heard["parent_header"].get("msg_id") != request:
                continue
            answered = answered or heard["msg_type"] == "execute_reply"
            idle = idle or heard["content"].get("execution_state") == "idle"
            if heard["msg_type"] == "error":
                error = "\n".join(heard["content"]["traceback"])
        return error

    def close(self) -> None:
        """Shut the kernel down, as closing the notebook does."""
        self._socket.close()
        self._server.ask("DELETE", f"kernels/{self._id}")


@dataclass
class Sampler:
    """Reads the memory of all processes of a server from a thread, and keeps the moment when it was most."""

    mark: str
    cell: str = ""
    peak: dict[str, float] = field(default_factory=dict)
    at: str = ""
    strangers: int = 0
    peaks: dict[str, float] = field(default_factory=dict)

    def __enter__(self) -> Sampler:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="tfos-memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(STOP_SECONDS)

    @property
    def total(self) -> float:
        return sum(self.peak.values())

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            cell, used, strangers = self.cell, Counter[str](), 0
            for pid in filter(str.isdigit, os.listdir("/proc")):
                with suppress(OSError):  # gone meanwhile, or another user's
                    if f"{MARK}={self.mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                        used[_kind(pid)] += _pss_mib(pid)
                    elif _is_trainer(pid):
                        strangers += 1
            total = sum(used.values())
            self.peaks[cell] = max(total, self.peaks.get(cell, 0.0))
            if total > self.total:
                self.peak, self.at = dict(used), cell
            self.strangers = max(strangers, self.strangers)


def _command(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _kind(pid: str) -> str:
    command = _command(pid)
    return next((kind for kind, sign in KINDS.items() if re.search(sign, command)), OTHER)


def _pss_mib(pid: str) -> float:
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def _is_trainer(pid: str) -> bool:
    return _kind(pid) == "trainers"


@dataclass(frozen=True)
class Measured:
    """A notebook's greatest use, MiB by kind of process, where that was, and what went wrong."""

    name: str
    sampler: Sampler
    seconds: float
    error: str


def measure(path: Path) -> Measured:
    """Run a notebook in a fresh folder, under a server and a kernel of its own."""
    notebook = nbformat.read(path, as_version=4)
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="tfos-memory-", ignore_cleanup_errors=True) as folder,
        lab(Path(folder)) as server,
        Sampler(server.mark) as sampler,
        closing(Kernel(server)) as kernel,
    ):
        for cell in notebook.cells:
            if cell.cell_type != "code":
                continue
            sampler.cell = cell.source.splitlines()[0]
            error = kernel.run(cell)
            if error and "raises-exception" not in cell.metadata.get("tags", ()):
                return Measured(path.stem, sampler, time.monotonic() - started, f"{sampler.cell}\n{error}")
    return Measured(path.stem, sampler, time.monotonic() - started, "")


def show_heading() -> None:
    kinds = "".join(f"{kind:>16}" for kind in [*KINDS, OTHER])
    print(f"{'MiB of PSS':32}{'peak':>8}{kinds}{'seconds':>10}  peak in the cell", flush=True)


def show(measured: Measured, cells: bool) -> None:
    sampler = measured.sampler
    kinds = "".join(f"{sampler.peak.get(kind, 0.0):16,.0f}" for kind in [*KINDS, OTHER])
    print(f"{measured.name:32}{sampler.total:8,.0f}{kinds}{measured.seconds:10.0f}  {sampler.at[:60]}", flush=True)
    if cells:
        for cell, total in sampler.peaks.items():
            print(f"  {total:8,.0f}  {cell[:100]}")
    if measured.error:
        print(f"FAILED: {measured.error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", help="names, such as 00_quickstart; all by default")
    parser.add_argument("--cells", action="store_true", help="show the greatest use in every cell")
    options = parser.parse_args()
    paths = sorted((PROJECT / "notebooks").glob("[0-9]*.ipynb"))
    wanted = [path for path in paths if not options.notebooks or path.stem in options.notebooks]
    show_heading()
    results = []
    for path in wanted:
        results.append(measure(path))
        show(results[-1], options.cells)
    if any(measured.sampler.strangers for measured in results):
        print("\nOther trainers ran beside, and shared pages with these: the figures are too low.")
    over = [measured.name for measured in results if measured.sampler.total > LIMIT_MIB]
    print(f"\n{len(results) - len(over)} of {len(results)} notebooks within {LIMIT_MIB:,} MiB (2 GiB)")
    if over or not results or any(measured.error for measured in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
