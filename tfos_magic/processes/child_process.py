"""A child process that cannot outlive its parent, and the two ends of the link between agent and trainer."""

from __future__ import annotations

import codecs
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil

from tfos_magic.disk import SHARED_VARIABLE
from tfos_magic.errors import OUT_OF_MEMORY, ProtocolError
from tfos_magic.processes.fork_client import ForkClient
from tfos_magic.processes.temporary_folder import PrivateFolder
from tfos_magic.transport.log_once import LogOnce
from tfos_magic.transport.messages import Alive, Message, RunCell, TrainerReady, decode, encode_fitting, failed
from tfos_magic.transport.wake_queue import WakeQueue

PARENT_VARIABLE = "TFOS_PARENT_PID"
TAIL_LINES = 40
LOOKS = 3
"""A look at memory is taken with each heartbeat: so many go back further than an exit takes to be noticed."""
log = logging.getLogger("tfos_magic.worker")
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends (Linux), and end now if that has happened already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    expected = int(os.environ.get(PARENT_VARIABLE, "0"))
    if expected and os.getppid() != expected:
        os._exit(1)


def name_process(name: str) -> None:
    """Give this process the name, of at most 15 letters, that ``ps`` and ``top`` show."""
    _prctl(_PR_SET_NAME, name.encode())


def _prctl(option: int, value: Any) -> None:
    """Set something of this process, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def kills_for_memory() -> int:
    """How many processes the system has killed for lack of memory since it started, those in containers too (Linux)."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)


class Link:
    """Messages over a pipe between agent and trainer. Sending is safe from several threads; receiving is one's job."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Write one message, cut where it shows too much. Raises ``OSError`` when the other end is gone."""
        header, payload = encode_fitting(message)
        with self._sending:
            self._connection.send_bytes(header)
            self._connection.send_bytes(payload)

    def receive(self) -> Message:
        """Wait for one message. Raises ``EOFError`` when the other end is gone, ``ProtocolError`` for what is none."""
        header = self._connection.recv_bytes()
        return decode([header, self._connection.recv_bytes()])

    def messages(self) -> Iterator[Message]:
        """Give what comes until the other end is gone; what cannot be read is logged and dropped."""
        logged = LogOnce(log)
        while True:
            try:
                yield self.receive()
            except ProtocolError as error:
                logged.warning(error.kind, f"dropped a malformed command: {error}")
            except (EOFError, OSError):
                return

    def close(self) -> None:
        self._connection.close()


class TrainerProcess:
    """A trainer as its agent sees it: its messages, the two output pipes, the last lines of output.

    ``forks`` starts it. Two threads read from the link and write to it, since both can block on a trainer that is
    stopped, and the agent must not. What it says is in the ``inbox``, last None, when it has closed the link or nothing
    more can be read of it: then ``fault`` says why, as the end of a sentence about it.
    ``shared`` is a folder that all trainers of a generation and host have.
    """

    def __init__(self, forks: ForkClient, generation: int, rank: int, environment: dict[str, str], shared: str) -> None:
        self.generation = generation
        self.rank = rank
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.heard = time.monotonic()
        self.ready = False
        self.fault = ""
        self._kills = deque([kills_for_memory()], maxlen=LOOKS)
        self._run_id = ""
        ours, theirs = Pipe(duplex=True)
        # What TensorFlow and cells write to temporary files goes with the trainer.
        self._folder = PrivateFolder("tfos-trainer-", also=shared)
        env = {**environment, "TMPDIR": self._folder.path, SHARED_VARIABLE: shared}
        output, errors = os.pipe(), os.pipe()
        self._forks = forks
        self._process = forks.fork([theirs.fileno(), output[1], errors[1]], env)
        theirs.close()
        os.close(output[1])
        os.close(errors[1])
        self._link = Link(ours)
        self.inbox: WakeQueue[Message | None] = WakeQueue()
        self._outbox: SimpleQueue[Message | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=f"tfos-trainer-{name}", daemon=True)
            for name, work in (("reader", self._read), ("writer", self._write))
        ]
        for thread in self._threads:
            thread.start()
        self.streams = {output[0]: "stdout", errors[0]: "stderr"}
        self._decoders = {fd: codecs.getincrementaldecoder("utf-8")("replace") for fd in self.streams}
        for fd in self.streams:
            os.set_blocking(fd, False)

    @property
    def pid(self) -> int:
        """Zero until it has been forked."""
        self._forks.poll(self._process)
        return self._process.pid

    def rss(self) -> int:
        """Bytes of memory that it holds now; 0 while it is not there. To be asked once a second."""
        self._kills.append(kills_for_memory())
        with suppress(psutil.NoSuchProcess, OSError):
            return int(psutil.Process(self.pid).memory_info().rss) if self.pid else 0
        return 0

    @property
    def silence(self) -> float:
        """Seconds since the trainer gave its last sign of life."""
        return time.monotonic() - self.heard

    def send(self, message: Message) -> None:
        """Queue a message. Nothing happens when the trainer is gone, for its exit is reported on its own."""
        if isinstance(message, RunCell):
            self._run_id = message.run_id
        self._outbox.put(message)

    def _read(self) -> None:
        while True:
            try:
                message: Message | None = self._link.receive()
            except ProtocolError as error:
                self._give_up(f"sent a message that cannot be read ({error})")
                return
            except (EOFError, OSError, TypeError):  # the last where another thread closes it in the middle of a read
                message = None
            self.heard = time.monotonic()
            if isinstance(message, Alive):
                continue
            self.ready = self.ready or isinstance(message, TrainerReady)
            self.inbox.put(message)
            if message is None:
                return

    def _give_up(self, why: str) -> None:
        """The cell fails for it, for that would happen again; no other trainer is tried."""
        self.fault = f"{why} and was ended"
        self.inbox.put(failed(self._run_id, self.rank, "ProtocolError", f"This worker's process {self.fault}."))
        self.inbox.put(None)

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._link.send(message)
            except ProtocolError as error:
                self._give_up(f"cannot be told what to do ({error})")
                return
            except OSError:
                return

    def read(self, fd: int) -> str:
        """What there is on an output pipe right now; an ended pipe is closed and dropped from ``streams``.

        A letter of which some bytes are yet to come is given with these.
        """
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return ""
        text = self._decoders[fd].decode(data, final=not data)
        if not data:
            del self.streams[fd]
            os.close(fd)
        self.tail.extend(line for line in text.splitlines() if line.strip())
        return text

    def exit_status(self) -> tuple[int, int] | None:
        """``(exit code, signal)`` once the process has ended, else None."""
        code = self._forks.poll(self._process)
        if code is None:
            return None
        if not self.tail:
            self.tail.extend(self._forks.last_output().splitlines())
        return (code, 0) if code >= 0 else (0, -code)

    def why(self, number: int) -> str:
        """Why the process ended by this signal, as the end of a sentence about it; empty where nothing is known."""
        if number == signal.SIGKILL and kills_for_memory() > self._kills[0]:
            return OUT_OF_MEMORY
        return "ended with the process that it was forked from, which has ended" if self._process.server_lost else ""

    def kill(self, timeout: float = 5.0) -> None:
        """End the trainer and all it started, free its pipes and files. Waits at most ``timeout`` seconds for each."""
        self._forks.kill(self._process, timeout)
        self._outbox.put(None)
        for thread in self._threads:
            thread.join(timeout)
        self._link.close()
        self.inbox.close()
        for fd in self.streams:
            os.close(fd)
        self.streams.clear()
        self._folder.close()
