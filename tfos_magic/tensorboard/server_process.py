"""TensorBoard beside the kernel: started once per log directory, reused while it answers, never left behind.

The shape follows TensorBoard's own notebook manager (``tensorboard.manager``): a start ends in one of four small
results. It differs in that no file or process id is trusted, the port itself is asked, and in that the process ends
with the kernel, however the kernel ends (see :mod:`tfos_magic.tensorboard.main`).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import uuid
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import IO

from tfos_magic.processes.child_process import PARENT_VARIABLE

START_TIMEOUT = 30.0
PROBE_TIMEOUT = 2.0
STOP_TIMEOUT = 5.0
OUTPUT_CHARACTERS = 4000
_TEMPLATE = Path(__file__).with_name("tensorboard.html")


@dataclass(frozen=True)
class Serving:
    """A TensorBoard serves ``logdir`` on ``127.0.0.1:port``."""

    logdir: str
    port: int

    @property
    def url(self) -> str:
        """Where it answers on the kernel's machine."""
        return f"http://127.0.0.1:{self.port}/"


@dataclass(frozen=True)
class Started(Serving):
    """It is a new one."""


@dataclass(frozen=True)
class Reused(Serving):
    """It is one of this kernel that served already and still answers."""


@dataclass(frozen=True)
class Failed:
    """The process ended before it served; ``output`` is the end of what it printed."""

    logdir: str
    exit_code: int
    output: str


@dataclass(frozen=True)
class TimedOut:
    """The process did not serve within ``seconds``, and was ended."""

    logdir: str
    seconds: float


Result = Started | Reused | Failed | TimedOut


@dataclass(frozen=True)
class _Board:
    process: subprocess.Popen[bytes]
    port: int


class TensorBoards:
    """The TensorBoards of one kernel, by log directory. Safe to call from several threads."""

    def __init__(self) -> None:
        self._boards: dict[str, _Board] = {}
        self._lock = threading.Lock()

    def ensure(self, logdir: str, timeout: float = START_TIMEOUT) -> Result:
        """Serve ``logdir``, which need not exist yet; start a process unless one answers. ``timeout`` in seconds."""
        logdir = _normal(logdir)
        with self._lock:
            board = self._boards.pop(logdir, None)
            if board and board.process.poll() is None and _serves(board.port, logdir):
                self._boards[logdir] = board
                return Reused(logdir, board.port)
            if board:
                _end(board.process)
            return self._start(logdir, timeout)

    def stop(self, logdir: str | None = None) -> int:
        """End the TensorBoard of ``logdir``, or all of them; gives how many were ended."""
        with self._lock:
            keys = list(self._boards) if logdir is None else [_normal(logdir)]
            boards = [self._boards.pop(key) for key in keys if key in self._boards]
        for board in boards:
            _end(board.process)
        return len(boards)

    def close(self) -> None:
        """End them all."""
        self.stop()

    def _start(self, logdir: str, timeout: float) -> Result:
        with tempfile.TemporaryFile() as printed:
            process = _spawn(logdir, printed)
            try:
                port = _read_port(process, timeout)
            except BaseException:  # above all Kernel ▸ Interrupt: nobody would own the process any more
                _end(process)
                raise
            if port:
                self._boards[logdir] = _Board(process, port)
                return Started(logdir, port)
            if port is None:
                _end(process)
                return TimedOut(logdir, timeout)
            return Failed(logdir, _exit_code(process), _tail(printed))


def embed(result: Result, height: int = 600, link: bool = False) -> dict[str, str]:
    """Give the MIME bundle to display for ``result``: an iframe, a link alone, or what went wrong and what to do."""
    match result:
        case Serving(logdir, port):
            html = link_html(result) if link else embed_html(port, height)
            return {"text/plain": f"TensorBoard of {logdir}: {result.url}", "text/html": html}
        case Failed(logdir, exit_code, output):
            cause = output.strip() or "it printed nothing"
            text = (
                f"TensorBoard for {logdir} ended with exit code {exit_code} before it served.\n{cause}\n"
                f"Check that `{sys.executable} -m tensorboard.main --version` works, then run the magic again."
            )
        case TimedOut(logdir, seconds):
            text = (
                f"TensorBoard for {logdir} did not serve within {seconds:g} s and was ended.\n"
                "The machine may be busy: run the magic again, or give it more time."
            )
    return {"text/plain": text, "text/html": f'<pre role="alert">{escape(text)}</pre>'}


def embed_html(port: int, height: int = 600) -> str:
    """Give HTML that shows the TensorBoard on ``port`` in an iframe ``height`` pixels high.

    The page finds out which way works: through the Jupyter server where jupyter-server-proxy is installed (the base
    URL is JupyterHub's service prefix, or what the page says), else straight to ``127.0.0.1``, else a note.
    """
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        frame_id=f"tfos-tensorboard-{uuid.uuid4().hex[:12]}",
        port=port,
        height=int(height),
        direct=f"http://127.0.0.1:{port}/",
        proxy=escape(os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "")),
    )


def link_html(serving: Serving) -> str:
    """Give HTML that leads to the TensorBoard: below JupyterHub's service prefix, where there is one, else straight.

    The page makes that address when it is asked for: JupyterLab takes links without a host for files of its own.
    """
    prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "")
    proxied = json.dumps(f"{prefix.rstrip('/')}/proxy/{serving.port}/")
    proxy = f' onclick="{escape(f"this.href = new window.URL({proxied}, location.href)")}"' if prefix else ""
    return f'<a href="{serving.url}"{proxy} target="_blank" rel="noopener">TensorBoard</a>'


def _normal(logdir: str) -> str:
    """One spelling per directory; URLs such as ``gs://`` stay as they are."""
    return logdir if "://" in logdir else os.path.abspath(os.path.expanduser(logdir))


def _spawn(logdir: str, printed: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the child in a session of its own, so that Kernel ▸ Interrupt, sent to the whole group, spares it."""
    path = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])]
    return subprocess.Popen(
        [sys.executable, "-m", "tfos_magic.tensorboard.main", logdir],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=printed,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PYTHONSAFEPATH": "1",
            PARENT_VARIABLE: str(os.getpid()),
        },
        start_new_session=True,
    )


def _read_port(process: subprocess.Popen[bytes], timeout: float) -> int | None:
    """Wait for the line with the port: 0 when the child closed its output without one, None when time ran out."""
    stream = process.stdout
    assert stream is not None
    with stream:
        if not select.select([stream], [], [], timeout)[0]:
            return None
        return int(os.read(stream.fileno(), 64) or 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe, which asks the child to end; kill it if it does not."""
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_TIMEOUT)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """Let a process that gave up end by itself: its own exit code says more than that of being told to."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT)
    _end(process)
    return process.returncode


def _tail(printed: IO[bytes]) -> str:
    printed.seek(0)
    return printed.read().decode(errors="replace")[-OUTPUT_CHARACTERS:]


def _serves(port: int, logdir: str) -> bool:
    """Ask the port whether a TensorBoard of this directory is behind it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_TIMEOUT)
    try:
        connection.request("GET", "/data/environment")
        reply = connection.getresponse()
        return reply.status == 200 and json.loads(reply.read()).get("data_location") == logdir
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
