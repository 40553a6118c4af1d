"""A child process that cannot outlive its parent, and the two ends of the link between agent and trainer."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from queue import Empty, SimpleQueue
from typing import IO

from tfos_magic.disk import SHARED_VARIABLE
from tfos_magic.errors import ProtocolError
from tfos_magic.processes.temporary_folder import PrivateFolder
from tfos_magic.transport.messages import Alive, Message, TrainerReady, decode, encode

LINK_VARIABLE = "TFOS_LINK_FD"
PARENT_VARIABLE = "TFOS_PARENT_PID"
RANK_VARIABLE = "TFOS_RANK"
TAIL_LINES = 40
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends (Linux), and end now if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    expected = int(os.environ.get(PARENT_VARIABLE, "0"))
    if expected and os.getppid() != expected:
        os._exit(1)


class Link:
    """Messages over a pipe between agent and trainer. Sending is safe from several threads; receiving is one's job."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    @classmethod
    def from_environment(cls) -> Link:
        """The trainer's end, as its agent left it in the environment."""
        return cls(Connection(int(os.environ.pop(LINK_VARIABLE))))

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Write one message. Raises ``OSError`` when the other end is gone."""
        header, payload = encode(message)
        with self._sending:
            self._connection.send_bytes(header)
            self._connection.send_bytes(payload)

    def receive(self) -> Message:
        """Wait for one message. Raises ``EOFError`` when the other end is gone."""
        header = self._connection.recv_bytes()
        return decode([header, self._connection.recv_bytes()])

    def close(self) -> None:
        self._connection.close()


class TrainerProcess:
    """A running trainer as its agent sees it: its messages, the two output pipes, the last lines of output.

    Two threads read from the link and write to it, since both can block on a trainer that is stopped, and the agent
    must not. ``wake`` becomes readable when :meth:`messages` has something to give. ``shared`` is a folder that all
    trainers of a generation and host have.
    """

    def __init__(self, generation: int, rank: int, environment: dict[str, str], shared: str) -> None:
        self.generation = generation
        self.rank = rank
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.heard = time.monotonic()
        self.ready = False
        ours, theirs = Pipe(duplex=True)
        # What TensorFlow and cells write to temporary files goes with the trainer.
        self._folder = PrivateFolder("tfos-trainer-", also=shared)
        env = {**environment, "TMPDIR": self._folder.path, SHARED_VARIABLE: shared, RANK_VARIABLE: str(rank)}
        env[LINK_VARIABLE] = str(theirs.fileno())
        env[PARENT_VARIABLE] = str(os.getpid())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tfos_magic.worker.trainer"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            env=env,
            start_new_session=True,
        )
        theirs.close()
        self._link = Link(ours)
        self.wake, self._waker = socket.socketpair()
        self.wake.setblocking(False)
        self._waker.setblocking(False)
        self._inbox: SimpleQueue[Message | None] = SimpleQueue()
        self._outbox: SimpleQueue[Message | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=f"tfos-trainer-{name}", daemon=True)
            for name, work in (("reader", self._read), ("writer", self._write))
        ]
        for thread in self._threads:
            thread.start()
        self.streams = self._open_streams()

    def _open_streams(self) -> dict[int, tuple[str, IO[bytes]]]:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        streams = {
            self._process.stdout.fileno(): ("stdout", self._process.stdout),
            self._process.stderr.fileno(): ("stderr", self._process.stderr),
        }
        for fd in streams:
            os.set_blocking(fd, False)
        return streams

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def silence(self) -> float:
        """Seconds since the trainer gave its last sign of life."""
        return time.monotonic() - self.heard

    def send(self, message: Message) -> None:
        """Queue a message. Nothing happens when the trainer is gone, for its exit is reported on its own."""
        self._outbox.put(message)

    def messages(self) -> Iterator[Message | None]:
        """What the trainer has said; None when it has closed the link, which is the last."""
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)
        while True:
            try:
                yield self._inbox.get_nowait()
            except Empty:
                return

    def _read(self) -> None:
        while True:
            try:
                message: Message | None = self._link.receive()
            except (EOFError, OSError, ProtocolError):
                message = None
            self.heard = time.monotonic()
            if isinstance(message, Alive):
                continue
            self.ready = self.ready or isinstance(message, TrainerReady)
            self._inbox.put(message)
            with contextlib.suppress(OSError):  # full, so that it will be read anyway; or closed, so that nobody reads
                self._waker.send(b"x")
            if message is None:
                return

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._link.send(message)
            except OSError:
                return

    def read(self, fd: int) -> str:
        """What there is on an output pipe right now; an ended pipe is closed and dropped from ``streams``."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return ""
        if not data:
            self.streams.pop(fd)[1].close()
            return ""
        text = data.decode(errors="replace")
        self.tail.extend(line for line in text.splitlines() if line.strip())
        return text

    def exit_status(self) -> tuple[int, int] | None:
        """``(exit code, signal)`` once the process has ended, else None."""
        code = self._process.poll()
        if code is None:
            return None
        return (code, 0) if code >= 0 else (0, -code)

    def kill(self, timeout: float = 5.0) -> None:
        """End the trainer and all it started, free its pipes and files. Waits at most ``timeout`` seconds for each."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout)
        self._outbox.put(None)
        for thread in self._threads:
            thread.join(timeout)
        self._link.close()
        for sock in (self.wake, self._waker):
            sock.close()
        for _, stream in self.streams.values():
            stream.close()
        self.streams.clear()
        self._folder.close()
