"""TensorBoard beside the kernel: started once per log directory, reused while it answers, never left behind.

The shape follows TensorBoard's own notebook manager (``tensorboard.manager``): a start ends in one of four small
results. It differs in that no file or process id is trusted, the port itself is asked, in that each process serves
below a path of its own that is secret (see :mod:`tfos_magic.tensorboard.guard`), and in that it ends with the kernel,
however the kernel ends (see :mod:`tfos_magic.tensorboard.main`).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import threading
import uuid
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from string import Template
from typing import IO

from tfos_magic.processes.child_process import PARENT_VARIABLE
from tfos_magic.tensorboard.log_folders import is_elsewhere, local_path
from tfos_magic.transport.secret import Secret

START_TIMEOUT = 30.0
PROBE_TIMEOUT = 2.0
STOP_TIMEOUT = 5.0
CLOSE_TIMEOUT = 0.5
SECRET_BYTES = 32
OUTPUT_CHARACTERS = 4000
_TEMPLATE = Path(__file__).with_name("tensorboard.html")


@dataclass(frozen=True)
class Serving:
    """A TensorBoard serves ``logdir`` on ``127.0.0.1:port`` to those who know its ``secret``."""

    logdir: str
    port: int
    secret: str = field(repr=False)

    @property
    def url(self) -> str:
        """Where it answers on the kernel's machine."""
        return f"http://127.0.0.1:{self.port}/{self.secret}/"

    @property
    def proxied(self) -> str:
        """Where it answers below the address of a Jupyter server that has jupyter-server-proxy."""
        return f"proxy/{self.port}/{self.secret}/"


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
    serving: Started


class TensorBoards:
    """The TensorBoards of one kernel, by log directory. Safe to call from several threads."""

    def __init__(self) -> None:
        self._boards: dict[str, _Board] = {}
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def ensure(self, logdir: str, timeout: float = START_TIMEOUT) -> Result:
        """Serve ``logdir``, which need not exist yet; start a process unless one answers. ``timeout`` in seconds."""
        logdir = _normal(logdir)
        with self._lock:
            board = self._boards.pop(logdir, None)
            if board and board.process.poll() is None and _serves(board.serving):
                self._boards[logdir] = board
                return Reused(logdir, board.serving.port, board.serving.secret)
            if board:
                self._end(board.process)
            return self._start(logdir, timeout)

    def stop(self, logdir: str | None = None) -> int:
        """End the TensorBoard of ``logdir``, or all of them; gives how many were ended."""
        with self._lock:
            keys = list(self._boards) if logdir is None else [_normal(logdir)]
            boards = [self._boards.pop(key) for key in keys if key in self._boards]
        for board in boards:
            self._end(board.process)
        return len(boards)

    def close(self) -> None:
        """End them all, those that are being started too, and start no more.

        No lock is taken and no wait is long: a signal's handler calls this, perhaps in the thread that starts one.
        """
        self._closed = True
        processes = list(self._processes)
        for process in processes:
            process.kill()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the thread that starts it waits for it already
                process.wait(CLOSE_TIMEOUT)
        for board in list(self._boards.values()):
            _close_pipes(board.process)

    def _start(self, logdir: str, timeout: float) -> Result:
        secret = Secret(secrets.token_urlsafe(SECRET_BYTES))
        with tempfile.TemporaryFile() as printed:
            process = _spawn(logdir, printed)
            self._processes.add(process)
            try:
                port = 0 if self._closed else _serving_port(process, secret, timeout)
            except BaseException:  # above all Kernel ▸ Interrupt: nobody would own the process any more
                self._end(process)
                raise
            if port:
                started = Started(logdir, port, secret)
                self._boards[logdir] = _Board(process, started)
                return started
            if port is None:
                self._end(process)
                return TimedOut(logdir, timeout)
            self._await_end(process)
            return Failed(logdir, process.returncode, _tail(printed))

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        """Let a process that gave up end by itself: its own exit code says more than that of being told to."""
        if not self._closed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT)
        self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill it: it has nothing to lose."""
        _close_pipes(process)
        process.kill()
        process.wait(STOP_TIMEOUT)
        self._processes.discard(process)


def embed(result: Result, height: int = 600, link: bool = False) -> dict[str, str]:
    """Give the MIME bundle to display for ``result``: an iframe, a link alone, or what went wrong and what to do."""
    match result:
        case Serving(logdir):
            html = link_html(result) if link else embed_html(result, height)
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


def embed_html(serving: Serving, height: int = 600) -> str:
    """Give HTML that shows a TensorBoard in an iframe ``height`` pixels high.

    The page finds out which way works: through the Jupyter server where jupyter-server-proxy is installed (the base
    URL is JupyterHub's service prefix, or what the page says), else straight to ``127.0.0.1``, else a note.
    """
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        frame_id=f"tfos-tensorboard-{uuid.uuid4().hex[:12]}",
        proxied=serving.proxied,
        height=int(height),
        direct=serving.url,
        base=escape(os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "")),
    )


def link_html(serving: Serving) -> str:
    """Give HTML that leads to the TensorBoard: below JupyterHub's service prefix, where there is one, else straight.

    The page makes that address when it is asked for: JupyterLab takes links without a host for files of its own.
    """
    prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "")
    proxied = json.dumps(f"{prefix.rstrip('/')}/{serving.proxied}")
    proxy = f' onclick="{escape(f"this.href = new window.URL({proxied}, location.href)")}"' if prefix else ""
    return f'<a href="{serving.url}"{proxy} target="_blank" rel="noopener">TensorBoard</a>'


def _normal(logdir: str) -> str:
    """One spelling per directory; URLs such as ``gs://`` stay as they are."""
    return logdir if is_elsewhere(logdir) else str(local_path(logdir))


def _spawn(logdir: str, printed: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the child in a session of its own, so that Kernel ▸ Interrupt, sent to the whole group, spares it."""
    path = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])]
    return subprocess.Popen(
        [sys.executable, "-m", "tfos_magic.tensorboard.main", logdir],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=printed,
        bufsize=0,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PYTHONSAFEPATH": "1",
            PARENT_VARIABLE: str(os.getpid()),
        },
        start_new_session=True,
    )


def _serving_port(process: subprocess.Popen[bytes], secret: str, timeout: float) -> int | None:
    """Hand over the secret and wait for the line with the port.

    Gives 0 when the child closed its output without one, None when time ran out.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended, as its output tells
        process.stdin.write(f"{secret}\n".encode())
    if not select.select([process.stdout], [], [], timeout)[0]:
        return None
    return int(process.stdout.read(64) or 0)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _tail(printed: IO[bytes]) -> str:
    printed.seek(0)
    return printed.read().decode(errors="replace")[-OUTPUT_CHARACTERS:]


def _serves(serving: Serving) -> bool:
    """Ask whether the TensorBoard of this directory is behind its port."""
    connection = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=PROBE_TIMEOUT)
    try:
        connection.request("GET", f"/{serving.secret}/data/environment")
        reply = connection.getresponse()
        return reply.status == 200 and json.loads(reply.read()).get("data_location") == serving.logdir
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
